"""The load test in small: `conseg listen`, several senders, kills; and that it finds what would be wrong."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from long_tests import long_test

pytest.importorskip("pynetdicom", reason="pynetdicom is not installed (extra node)")
SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))  # also for the senders, which are processes of their own
    try:
        yield importlib.import_module("node_load")
    finally:
        sys.path.remove(str(SCRIPTS))


@long_test
@pytest.mark.skipif(sys.platform == "win32", reason="groups of processes are killed as on POSIX")
def test_every_series_is_answered_once_though_the_node_is_killed_under_load(script, tmp_path):
    config = script.LoadConfig(series=4, slices=8, senders=2, kills=2, seconds=1200)
    result = script.run(config, tmp_path / "load")
    assert result.problems == []
    assert result.series_answered == result.states["done"] == 4
    assert len(result.killed_while) == 2


def test_what_is_lost_doubled_or_different_is_a_problem(script):
    config = script.LoadConfig(series=4, slices=8, senders=2, kills=2)
    good = script.LoadResult(4, 0, 0, 1, 0, {"done": 4}, ["", ""], 3, 1.0, 2.0)
    assert script.problems(config, good) == []
    faults = {
        "series_answered": 3,
        "series_answered_twice": 1,
        "results_with_missing_slices": 1,
        "same_result_stored_again": 3,
        "same_uid_other_bytes": 1,
        "states": {"done": 3, "failed": 1},
    }
    for name, value in faults.items():
        assert len(script.problems(config, replace(good, **{name: value}))) == 1
