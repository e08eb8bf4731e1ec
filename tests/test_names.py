"""Names from outside never become a path of their own choice, nor a command to a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_segment.errors import ContinualSegmentError, DatasetError
from continual_segment.names import LONGEST_NAME, check_file_name, did_you_mean, printable, some_of

HOSTILE = [
    "", " ", ".", "..", "../x", "a/b", "a\\b", "/etc/passwd", "C:x", "a\nb", "a\x1b[31m", "a\0b", "NUL",
    "con.nii", ".hidden", "-rf", "x.", "x ", "a" * (LONGEST_NAME + 1), "é" * LONGEST_NAME, "a\u202eb",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_with_the_error_of_its_kind(name: str) -> None:
    with pytest.raises(DatasetError):
        check_file_name(name, "Case", DatasetError)


@pytest.mark.parametrize("name", ["s0011", "case 7", "Müller_2", "1.2.840.113", "a-b_c.d", "左腎"])
def test_an_ordinary_name_is_returned_unchanged(name: str) -> None:
    assert check_file_name(name, "Case", DatasetError) == name


@given(st.text())
def test_whatever_is_accepted_stays_within_its_folder(name: str) -> None:
    try:
        check_file_name(name, "Case", DatasetError)
    except ContinualSegmentError:
        return
    folder = Path("/folder")
    assert (folder / name).parent == folder
    assert (folder / name).name == name


@given(st.text(), st.integers(1, 50))
def test_printable_text_is_one_line_of_bounded_length_without_control_characters(
    text: str, longest: int
) -> None:
    shown = printable(text, longest)
    assert shown.isprintable()
    assert len(shown) <= longest + 3


def test_the_nearest_known_names_are_suggested():
    known = ["segment", "prepare", "learn"]
    assert did_you_mean("segmnet", known) == "Did you mean segment? "
    assert did_you_mean("unicorn", known) == ""


def test_the_first_of_many_names_are_listed_and_the_others_counted():
    assert some_of(["a", "b"]) == "a, b"
    assert some_of((str(number) for number in range(7)), 3) == "0, 1, 2 and 4 more"
    assert some_of([]) == "none"
    assert some_of(["left\x1b[2Jlung", "x" * 999], longest=20) == f"left\ufffd[2Jlung, {'x' * 20}..."
