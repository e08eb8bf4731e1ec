"""One switch hides every progress bar."""

import logging

import pytest

from continual_segment.processes import for_each
from continual_segment.progress import progress_bar


@pytest.fixture
def quiet():
    log = logging.getLogger("continual_segment.progress")
    before = log.level
    log.setLevel(logging.WARNING)
    yield
    log.setLevel(before)


def test_bars_are_shown_by_default(capsys):
    assert list(progress_bar(range(3), desc="working")) == [0, 1, 2]
    assert "working: 100%" in capsys.readouterr().err


def test_bars_are_hidden_below_their_level(quiet, capsys):
    assert list(progress_bar(range(3), desc="working")) == [0, 1, 2]
    assert for_each(len, {"a": ("xy",)}, title="working").results == {"a": 2}
    assert capsys.readouterr().err == ""


def test_a_bar_without_a_terminal_is_hidden_where_it_is_asked_for(capsys):
    assert list(progress_bar(range(3), desc="working", disable=None)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


IN_WORKERS = """
from continual_segment.processes import for_each
from continual_segment.progress import progress_bar

def count(number):
    return sum(progress_bar(range(number)))

if __name__ == "__main__":
    print(for_each(count, {"a": (2,), "b": (3,)}, workers=2).results)
"""


def test_bars_in_workers_leave_no_semaphore_behind(python, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(IN_WORKERS)
    printed, messages = python(script).communicate(timeout=60)
    assert printed.strip() == "{'a': 1, 'b': 3}"
    assert "leaked" not in messages
