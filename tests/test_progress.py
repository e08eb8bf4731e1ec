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
