"""Stock nnU-Net beside an imported model: what the scripts compare, measure and report."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from continual_segment.errors import DatasetError
from continual_segment.volume import Grid, LabelMap

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
STOCK = {1: "liver", 2: "spleen", 3: "aorta"}
OURS = {5: "liver", 1: "spleen", 52: "aorta"}
MB = 2**20


@pytest.fixture
def script(request):
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(request.param)
    finally:
        sys.path.remove(str(SCRIPTS))


def of_script(name):
    return pytest.mark.parametrize("script", [name], indirect=True)


def label_map(voxels, names):
    voxels = np.asarray(voxels, np.uint8).reshape(1, 2, 4)
    return LabelMap(voxels, Grid(voxels.shape, np.eye(4)), names)


@of_script("nnunet_import")
def test_labels_are_compared_by_name(script):
    stock = label_map([0, 1, 1, 1, 2, 2, 0, 0], STOCK)
    same = label_map([0, 5, 5, 5, 1, 1, 0, 0], OURS)
    found = script.Agreement.of(stock, same, truth=stock)
    assert (found.voxels, found.different, found.equal) == (8, 0, 1.0)
    assert found.dice == (1.0, 1.0)  # the truth has no aorta
    assert found.differences == (0.0, 0.0)


@of_script("nnunet_import")
def test_voxels_and_dice_that_differ_are_counted(script):
    stock = label_map([0, 1, 1, 1, 2, 2, 0, 0], STOCK)
    ours = label_map([0, 5, 5, 1, 1, 1, 0, 52], OURS)
    found = script.Agreement.of(stock, ours, truth=stock)
    assert found.different == 2
    assert found.differences == pytest.approx((1 - 4 / 5, 1 - 4 / 5))
    assert (found + found).equal == found.equal
    assert len((found + found).dice) == 4


@of_script("nnunet_import")
def test_organ_that_stock_does_not_have_differs(script):
    stock = label_map([0, 1, 1, 0, 0, 0, 0, 0], {1: "liver"})
    ours = label_map([0, 5, 5, 52, 0, 0, 0, 0], OURS)
    assert script.Agreement.of(stock, ours, truth=stock).different == 1


TWO_CHILDREN = f"""
import sys, time
from subprocess import PIPE, Popen
child = "held = bytearray(b'1') * {100 * MB}; print(flush=True); input()"
children = [Popen([sys.executable, "-c", child], stdin=PIPE, stdout=PIPE) for _ in range(2)]
for each in children:
    each.stdout.readline()
time.sleep(1)
for each in children:
    each.communicate(b"end")
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from Linux's /proc")
@of_script("measured_process")
def test_memory_of_all_processes_of_a_command_counts(script):
    measured = script.run_measured([sys.executable, "-c", TWO_CHILDREN])
    assert 200 * MB < measured.peak_bytes < 400 * MB
    assert measured.seconds > 1


STEPS = {
    "per_dataset": [{"Dataset101_A": 0.8}, {"Dataset102_B": 0.7}],
    "fine_tuned": [{"Dataset101_A": 0.8}, {"Dataset101_A": 0.0, "Dataset102_B": 0.75}],
    "ours": [{"Dataset101_A": 0.8}, {"Dataset101_A": 0.8, "Dataset102_B": 0.72}],
}


@of_script("nnunet_story_report")
def test_report_shows_dice_when_learned_and_at_the_end(script, tmp_path):
    for method, steps in zip(script.METHODS, STEPS.values(), strict=True):
        made = [
            script.Step([*dice][-1], {name: {"liver": {"case": value}} for name, value in dice.items()})
            for dice in steps
        ]
        script.write_steps(tmp_path, method, made)
    script.write_report(tmp_path, tmp_path / "figure.png")
    rows = (tmp_path / "table.md").read_text().splitlines()
    assert rows[2] == "| 101 | liver | 1 | 0.800 | 0.800 | 0.000 | 0.800 | 0.800 |"
    assert rows[3] == "| 102 | liver | 1 | 0.700 | 0.750 | 0.750 | 0.720 | 0.720 |"
    assert rows[5].endswith("| 0.800 | | 0.000 |")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@of_script("nnunet_story_report")
def test_damaged_scores_are_refused_by_name(script, tmp_path):
    (tmp_path / "ours.json").write_text(json.dumps({"method": "ours", "steps": [{"learned": 1}]}))
    with pytest.raises(DatasetError, match=r"ours\.json"):
        script.read_steps(tmp_path, "ours")
