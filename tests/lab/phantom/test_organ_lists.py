"""Which organs the phantom's datasets label."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from continual_segment.lab.phantom.datasets import DATASETS
from continual_segment.lab.phantom.organ_lists import CHEST, DEMO, ESOPHAGUS, HEADNECK, TOTALSEG
from continual_segment.organs import known_organs

PAPER = Path(__file__).parents[4] / "shared" / "reference" / "organs.json"


def test_there_are_143_organs_and_the_datasets_share_four():
    assert (len(TOTALSEG), len(CHEST), len(HEADNECK), len(ESOPHAGUS)) == (103, 31, 13, 1)
    assert len({*TOTALSEG, *CHEST, *HEADNECK, *ESOPHAGUS}) == 143
    assert set(TOTALSEG) & set(CHEST) == {"esophagus", "inferior_vena_cava", "pulmonary_artery", "trachea"}


@pytest.mark.skipif(not PAPER.is_file(), reason=f"the paper's organ lists are not on this machine ({PAPER})")
def test_the_lists_are_those_of_the_paper():
    lists = json.loads(PAPER.read_text(encoding="utf-8"))["datasets"].values()
    assert [tuple(organ["name"] for organ in organs) for organs in lists] == [
        TOTALSEG, CHEST, HEADNECK, ESOPHAGUS,
    ]  # fmt: skip


@pytest.mark.parametrize("name", DATASETS)
def test_every_label_has_its_row_in_the_organ_table(name):
    assert set(DATASETS[name].organs) <= {organ.name for organ in known_organs()}


@pytest.mark.parametrize("name", DATASETS)
def test_the_demo_s_organs_are_some_of_the_dataset_s(name):
    assert set(DEMO[name]) <= set(DATASETS[name].organs)


def test_the_demo_shares_organs_as_the_datasets_do():
    assert len(set(DEMO["totalseg"]) & set(DEMO["chest"])) >= 2
    assert not set(DEMO["headneck"]) & {*DEMO["totalseg"], *DEMO["chest"]}
    assert set(DEMO["esophagus"]) <= set(DEMO["totalseg"]) & set(DEMO["chest"])
