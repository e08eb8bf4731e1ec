"""An organ without a voxel in the training cases is left out of the pack, not guessed in every scan."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from continual_segment.data.prepare import prepare
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.errors import DatasetError
from continual_segment.files import read_labels, read_scan, write_labels
from continual_segment.lab.baselines import METHODS, StepSettings, learn_step
from continual_segment.learning import learn_dataset
from continual_segment.learning.anomaly import learn_anomaly
from continual_segment.model import Model, verify
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.training import history
from continual_segment.volume import LabelMap

ABSENT = 3
"""A label in the middle of the list, so that later ones get other numbers; the base model lacks its organ."""


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")


@pytest.fixture
def config(preset, quick):
    return quick(preset.learn, iterations=2, report_every=2)


@pytest.fixture
def without(raw_folders, datasets, preset, tmp_path):
    """The chest without some labels in its training cases; the other cases keep them."""

    def make(labels):
        raw = Path(shutil.copytree(raw_folders["chest"], tmp_path / raw_folders["chest"].name))
        for name in datasets["chest"].case_names("train"):
            path = raw / "labelsTr" / f"{name}.nii.gz"
            found = read_labels(path)
            write_labels(path, LabelMap(np.where(np.isin(found.voxels, labels), 0, found.voxels), found.grid))
        opened = RawDataset.open(raw, workers=1, check=False)
        return prepare(opened, tmp_path / "prepared", preset.prepare, workers=1, progress=False)

    return make


@pytest.fixture
def absent(datasets):
    return datasets["chest"].organs[ABSENT - 1]


def test_it_is_left_out_of_the_pack_with_a_notice(without, absent, base_folder, config, caplog, scan_path):
    dataset = without([ABSENT])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pack = learn_dataset(dataset, base_folder, config, "chest")
    assert absent.name in caplog.text
    assert pack.organs == tuple(organ for organ in dataset.organs if organ != absent)
    assert pack.card["left_out"] == [absent.name]
    assert pack.decoder().head.out_channels == len(dataset.organs)
    assert verify(base_folder).good
    segmenter = Segmenter(Model.open(base_folder), packs=["chest"], config=SegmentConfig(progress=False))
    labels = segmenter(read_scan(scan_path)).labels
    assert absent.id not in labels.names
    assert absent.id not in np.unique(labels.voxels)


def test_the_other_organs_keep_their_voxels_and_get_new_numbers(without, absent, datasets):
    dataset = without([ABSENT])
    learnable = dataset.learnable()
    shown = False
    for name in dataset.splits:
        before, after = dataset.case(name), learnable.case(name)
        stored, labels = before.labels[:], after.labels[:]
        assert labels.dtype == stored.dtype
        for number, organ in enumerate(dataset.organs, start=1):
            new = 0 if organ == absent else learnable.organs.index(organ) + 1
            assert (labels[stored == number] == new).all()
            assert (new in after.foreground) == (new > 0 and number in before.foreground)
        for number, places in after.foreground.items():
            assert (labels[tuple(places.T)] == number).all()
        shown |= ABSENT in before.foreground_rows
    assert shown  # in a case that is not for training
    assert learnable.learnable() is learnable
    assert learnable.fingerprint != dataset.fingerprint


def test_a_dataset_whose_organs_all_occur_is_learned_as_it_is(datasets):
    assert datasets["chest"].learnable() is datasets["chest"]
    assert datasets["chest"].left_out == ()


def test_a_dataset_without_any_organ_is_refused_before_training(
    without, datasets, config, base_folder, tmp_path
):
    dataset = without(range(1, 100))
    for folder in (base_folder, tmp_path / "new"):
        with pytest.raises(DatasetError, match=f"{dataset.folder}.*{datasets['chest'].organs[0].name}"):
            learn_dataset(dataset, folder, config, "chest")
        assert not folder.with_name(f"{folder.name}.runs").exists()
    with pytest.raises(DatasetError, match=str(dataset.folder)):
        learn_anomaly(dataset, base_folder, config, "chest")


def test_a_stopped_step_resumes_to_the_same_bytes(without, absent, config, tmp_path, monkeypatch, contents):
    dataset = without([ABSENT])

    def full(*arguments):
        raise OSError("the disk is full")

    with monkeypatch.context() as stopped:
        stopped.setattr(Model, "create", full)
        with pytest.raises(OSError, match="disk is full"):
            learn_dataset(dataset, tmp_path / "one" / "model", config, "chest")
    for name in ("one", "two"):
        again = PreparedDataset.open(dataset.folder)
        assert absent not in learn_dataset(again, tmp_path / name / "model", config, "chest").organs
    assert contents(tmp_path / "one" / "model") == contents(tmp_path / "two" / "model")


@pytest.mark.parametrize("name", ["fine-tuning", "upper-bound"])
def test_comparison_methods_leave_it_out_too(name, without, absent, base_model_folder, preset, tmp_path):
    settings = StepSettings(
        preset.patches, preset.augment, replace(preset.later, iterations=2, report_every=1)
    )
    model = learn_step(METHODS[name], base_model_folder, without([ABSENT]), tmp_path / "m", settings, "chest")
    assert absent not in model.pack("chest").organs
    assert {"esophagus", "descending_aorta"} <= {organ.name for organ in model.pack("chest").organs}
