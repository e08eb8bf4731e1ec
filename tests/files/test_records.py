"""What JSON and TOML files from outside may hold, and how a wrong field is reported."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record, parse_json, read_json, read_toml


@dataclass(frozen=True)
class Network:
    features: tuple[int, ...]
    kind: Literal["plain", "residual"] = "plain"

    def __post_init__(self) -> None:
        if min(self.features, default=0) < 1:
            raise ValueError("features are at least 1")


@dataclass(frozen=True)
class Description:
    network: Network
    spacing_mm: tuple[float, float, float]
    card: dict[str, Any] = field(default_factory=dict)


GOOD = {"network": {"features": [8, 16]}, "spacing_mm": [3, 1.5, 1.5], "card": {"anything": [1, {}]}}


def record(data: Any) -> Description:
    return as_record(data, Description, "model.json", ModelError, "Restore it.")


def test_a_record_has_tuples_floats_and_defaults() -> None:
    assert record(GOOD) == Description(Network((8, 16)), (3.0, 1.5, 1.5), {"anything": [1, {}]})


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"network": {"features": [8, "16"]}}, "$.network.features[1]"),
        ({"network": {"features": [0]}}, "$.network"),
        ({"network": {"features": [8], "kind": "other"}}, "$.network.kind"),
        ({"spacing_mm": [1, 1]}, "$.spacing_mm"),
        ({"network": 3}, "$.network"),
    ],
)
def test_a_wrong_field_is_named_by_its_path(wrong: dict[str, Any], place: str) -> None:
    with pytest.raises(ModelError) as caught:
        record(GOOD | wrong)
    assert place in str(caught.value)
    assert "model.json" in str(caught.value)


def test_a_wrong_choice_is_reported_with_those_that_can_be() -> None:
    @dataclass(frozen=True)
    class Networks:
        kinds: tuple[Literal["plain", "residual"], ...]

    with pytest.raises(ModelError, match=r"network\.kind`.*plain, residual"):
        record(GOOD | {"network": {"features": [8], "kind": "other"}})
    with pytest.raises(ModelError, match="which is one of plain, residual"):
        as_record({"kinds": ["plain", "other"]}, Networks, "model.json", ModelError, "Restore it.")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(ANY_JSON, st.sampled_from(["network", "spacing_mm", "card"]))
def test_whatever_a_file_holds_is_a_record_or_our_error(value: Any, key: str) -> None:
    with suppress(ModelError):
        assert isinstance(record(GOOD | {key: value}), Description)


def test_files_that_are_no_text_no_json_or_no_toml_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    for content in (b"\xff\xfe\x00", b"{", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"model\.json"):
            read_toml(path, Description, ModelError, "Restore it.")
    for text in ("nothing", "[" * 100_000):
        with pytest.raises(ModelError, match=r"a\.pack"):
            parse_json(text, Description, "a.pack", ModelError, "Get the pack again.")


def test_numbers_as_keys_of_an_object_are_read(tmp_path):
    (tmp_path / "rows.json").write_text('{"7": [0, 5]}')
    assert read_json(tmp_path / "rows.json", dict[int, tuple[int, int]], ModelError, "") == {7: (0, 5)}


def test_a_file_that_is_missing_or_no_text_is_an_error_with_its_name(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    for name in ("binary.json", "missing.json"):
        with pytest.raises(ModelError, match=f"{name}: .*Restore it"):
            read_json(tmp_path / name, Description, ModelError, "Restore it.")
