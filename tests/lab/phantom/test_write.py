"""Phantom datasets as they lie on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from continual_segment.data.raw import RawDataset
from continual_segment.errors import ConfigError
from continual_segment.files import read_labels, read_scan
from continual_segment.lab.phantom import DATASETS, write_phantom
from continual_segment.lab.phantom.datasets import PhantomDataset
from continual_segment.lab.phantom.organ_lists import label_voxels
from continual_segment.lab.phantom.patient import EsophagusTumour
from continual_segment.lab.phantom.scanner import majority
from continual_segment.lab.phantom.write import case_seed, make_scan

COARSE = (10.0, 10.0, 10.0)


def fingerprints(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def chest_folder(tmp_path_factory) -> Path:
    return write_phantom(tmp_path_factory.mktemp("raw"), "chest", 2, 7, COARSE, 1, progress=False)


def test_the_same_seed_gives_the_same_bytes(chest_folder, tmp_path):
    again = write_phantom(tmp_path, "chest", 2, 7, COARSE, 1, progress=False)
    assert fingerprints(again) == fingerprints(chest_folder)


def test_fewer_cases_are_the_first_of_more(chest_folder, tmp_path):
    fewer = write_phantom(tmp_path, "chest", 1, 7, COARSE, 1, progress=False)
    name = "imagesTr/chest_0000_0000.nii.gz"
    assert fingerprints(fewer)[name] == fingerprints(chest_folder)[name]


def test_another_seed_gives_other_patients(chest_folder, tmp_path):
    other = write_phantom(tmp_path, "chest", 1, 8, COARSE, 1, progress=False)
    name = "imagesTr/chest_0000_0000.nii.gz"
    assert fingerprints(other)[name] != fingerprints(chest_folder)[name]


def test_it_opens_as_a_dataset_like_any_other(chest_folder):
    raw = RawDataset.open(chest_folder, workers=1, progress=False)
    assert [organ.name for organ in raw.organs] == list(DATASETS["chest"].organs)
    assert len(raw.cases) == 2


def test_scan_and_labels_share_a_grid_and_labels_carry_names(chest_folder):
    scan = read_scan(chest_folder / "imagesTr" / "chest_0001_0000.nii.gz")
    labels = read_labels(chest_folder / "labelsTr" / "chest_0001.nii.gz")
    assert scan.grid.same_place(labels.grid)
    assert labels.names[1] == "esophagus"


def test_each_case_carries_its_body_parts(chest_folder):
    parts = json.loads((chest_folder / "body_parts" / "chest_0000.json").read_text())["slices"]
    scan = read_scan(chest_folder / "imagesTr" / "chest_0000_0000.nii.gz")
    edges = [parts[name] for name in ("hip_thigh", "abdomen", "chest", "head_neck")]
    assert edges[0][0] == 0
    assert edges[-1][1] == scan.grid.shape[0]
    assert all(a[1] == b[0] for a, b in pairwise(edges))
    assert parts["chest"][1] - parts["chest"][0] >= 15  # 150 mm and more of chest


def test_the_demo_takes_fewer_organs_from_the_same_bodies(chest_folder, tmp_path):
    demo = write_phantom(tmp_path, "chest", 1, 7, COARSE, 1, organs="demo", progress=False)
    name = "imagesTr/chest_0000_0000.nii.gz"
    assert fingerprints(demo)[name] == fingerprints(chest_folder)[name]
    assert 2 < len(json.loads((demo / "dataset.json").read_text())["labels"]) < 31


@pytest.mark.parametrize("arguments", [("lungs", 1, 0), ("chest", 0, 0)])
def test_what_cannot_be_written_is_refused_in_a_sentence(tmp_path, arguments):
    with pytest.raises(ConfigError, match=r"\.$"):
        write_phantom(tmp_path, *arguments)


def labels_of(dataset: PhantomDataset, number: int, mm: float) -> np.ndarray:
    scan = make_scan(dataset, case_seed(0, dataset, number), (mm, mm, mm))
    return majority(label_voxels(scan.body, dataset.organs), scan.split)


@pytest.mark.parametrize("name", ["chest", "headneck", "esophagus"])
def test_a_fixed_field_of_view_shows_every_organ_at_laptop_size(name):
    dataset = DATASETS[name]
    counts = np.bincount(labels_of(dataset, 3, 5.0).ravel(), minlength=len(dataset.organs) + 1)[1:]
    few = {organ: int(n) for organ, n in zip(dataset.organs, counts, strict=True) if n < 3}
    assert few == {}


def test_the_tumour_dataset_shows_every_kind_of_tumour_and_scans_without_any():
    dataset = DATASETS["tumour"]
    shown = [set(np.unique(labels_of(dataset, number, 8.0)).tolist()) for number in range(16)]
    assert set.union(*shown) == set(range(len(dataset.organs) + 1))
    assert {0} in shown


def test_patients_of_the_esophagus_dataset_are_all_diseased():
    assert all(DATASETS["esophagus"].draw(seed).tumours for seed in range(20))


@pytest.mark.parametrize("name", ["chest", "esophagus", "tumour"])
def test_other_patients_are_scanned_by_the_same_scanner(name):
    healthy, diseased = (DATASETS[name].with_disease(disease) for disease in ("none", "esophagus"))
    assert not any(healthy.draw(seed).tumours for seed in range(20))
    for seed in range(20):
        (tumour,) = diseased.draw(seed).tumours
        assert isinstance(tumour, EsophagusTumour)
        assert replace(diseased.draw(seed), tumours=()) == healthy.draw(seed)
    assert healthy.scanner == diseased.scanner == DATASETS[name].scanner


def test_an_unknown_disease_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="usual, none, esophagus"):
        write_phantom(tmp_path, "chest", 1, disease="flu")


def test_a_seed_below_zero_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="0 or more, not -1"):
        write_phantom(tmp_path, "chest", 1, -1)
