"""The share of the machine's peak counts the work that is really done."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from continual_segment.model import Model
from continual_segment.organs import BODY_PARTS
from continual_segment.segmentation import ScanContext, SegmentConfig, Segmenter, prepared_scan
from continual_segment.segmentation.sliding_window import count_windows
from continual_segment.volume import Grid, Volume

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("segment_vs_nnunet")
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture
def segmenter(shared_model_folder):
    # `weighted` runs the encoder on a few more windows, to describe the scan
    config = SegmentConfig(merge="consensus", progress=False)
    return Segmenter(Model.open(shared_model_folder), config=config)


def scan_in_air(model, depth=40):
    """A body in the middle of a scan several windows wide."""
    shape = depth, 5 * model.window[1], 5 * model.window[2]
    voxels = np.full(shape, -1000, np.int16)
    voxels[:, 2 * model.window[1] : 3 * model.window[1], 2 * model.window[2] : 3 * model.window[2]] = 40
    return Volume(voxels, Grid(shape, np.diag([*model.prepare.spacing_mm[::-1], 1.0])))


def test_windows_that_do_not_run_are_not_counted(script, segmenter, shared_model_folder):
    model = Model.open(shared_model_folder)
    scan, encode, ran = scan_in_air(model), segmenter.encode, []
    segmenter.encode = lambda cuts: ran.append(len(cuts)) or encode(cuts)
    windows = script.count_runs(segmenter)
    segmenter(scan)
    everywhere = count_windows(scan.grid.shape, model.window, 0.5)
    assert windows() == dict.fromkeys(("", *model.pack_names), sum(ran))
    assert 0 < sum(ran) < everywhere / 2
    one = script.work(model, dict.fromkeys(windows(), 1))
    assert script.work(model, windows()) == sum(ran) * one


def test_a_pack_out_of_its_body_parts_adds_no_work(script, segmenter, shared_model_folder):
    model = Model.open(shared_model_folder)
    scan, (broad, other) = scan_in_air(model), segmenter.packs
    broad.profile = type(broad.profile)(broad.profile.name)
    other.profile = type(other.profile)(other.profile.name, coverage={"chest": 1.0})
    windows = script.count_runs(segmenter)
    segmenter(scan, context=ScanContext.of(np.full(scan.grid.shape[0], BODY_PARTS.index("head_neck"))))
    found = windows()
    assert (found[other.profile.name], found[broad.profile.name]) == (0, found[""])
    alone = script.work(model, dict.fromkeys(found, 0) | {other.profile.name: 1})
    assert alone > 0
    assert script.work(model, found) < script.work(model, dict.fromkeys(found, found[""]))


def test_the_line_of_one_pack_runs_every_window_of_the_scan(
    script, segmenter, shared_model_folder, monkeypatch
):
    for target, name in ((prepared_scan, "body_box"), (prepared_scan.ResampledScan, "tiling")):
        monkeypatch.setattr(target, name, getattr(target, name))  # restored after the test
    script.use_nnunet_windows()
    model = Model.open(shared_model_folder)
    scan, windows = scan_in_air(model), script.count_runs(segmenter)
    segmenter(scan)
    assert windows()[""] == count_windows(scan.grid.shape, model.window, 0.5)
