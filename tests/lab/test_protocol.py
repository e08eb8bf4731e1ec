"""Scores of held-out scans, and the scans that a report shows."""

import numpy as np
import pytest

from continual_segment.errors import ConfigError
from continual_segment.lab.protocol import HeldOut, make_example, score, score_and_show


@pytest.fixture
def held_out(raw_datasets, datasets):
    return HeldOut.of(raw_datasets["chest"], datasets["chest"], at_most=1)


@pytest.mark.parametrize("at_most", [0, -1])
def test_a_number_of_scans_that_leaves_some_out_is_refused(raw_datasets, datasets, at_most):
    with pytest.raises(ConfigError, match=f"At least one scan.*not {at_most}"):
        HeldOut.of(raw_datasets["chest"], datasets["chest"], at_most)


def test_the_scan_to_show_is_the_one_that_was_scored(shared_model_folder, held_out, preset, tmp_path):
    settings = ("chest", ("totalseg", "chest"), held_out, preset, tmp_path)
    shown = score_and_show(shared_model_folder, *settings)
    again = make_example(shared_model_folder, "chest", held_out, preset)
    assert shown.case == again.case == held_out.cases[0].name
    for part in ("scan", "truth", "own", "merged"):
        assert np.array_equal(getattr(shown, part).voxels, getattr(again, part).voxels)
    own, merged = score(shared_model_folder, *settings)
    assert {row.case for row in (*own.rows, *merged.rows)} == {shown.case}


def test_scans_that_were_scored_are_not_segmented_again(shared_model_folder, held_out, preset, tmp_path):
    settings = ("chest", ("totalseg", "chest"), held_out, preset, tmp_path)
    assert score_and_show(shared_model_folder, *settings) is not None
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert score_and_show(shared_model_folder, *settings) is None
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == written
