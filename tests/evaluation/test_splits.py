"""Which cases are scored, and what is recorded of their use in training."""

import csv
import json
import shutil

import numpy as np
import pytest

from continual_segment.data.prepare import PrepareConfig, prepare
from continual_segment.data.raw import RawDataset
from continual_segment.data.splits import split_cases
from continual_segment.errors import ConfigError, DatasetError
from continual_segment.evaluation import Evaluation, evaluate
from continual_segment.evaluation.splits import CaseSplits
from continual_segment.files import write_labels, write_scan
from continual_segment.volume import Grid, LabelMap, Volume

CASES = [f"case_{number}" for number in range(8)]
SPLITS = split_cases(CASES)
COUNTS = {split: list(SPLITS.values()).count(split) for split in ("train", "validation", "test")}
GRID = Grid((8, 8, 8), np.diag([8.0, 8.0, 8.0, 1.0]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Predictions of all cases of a raw dataset, the dataset, and what `prepare` made of it."""
    folder = tmp_path_factory.mktemp("splits")
    raw, voxels = folder / "Dataset001_Test", np.zeros(GRID.shape, np.uint8)
    voxels[2:6, 2:6, 2:6] = 1
    noise = np.random.default_rng(0).integers(-1000, 1000, GRID.shape).astype(np.int16)
    for case in CASES:
        write_scan(raw / "imagesTr" / f"{case}_0000.nii.gz", Volume(noise, GRID))
        write_labels(raw / "labelsTr" / f"{case}.nii.gz", LabelMap(voxels, GRID))
        write_labels(folder / "predictions" / f"{case}.nii.gz", LabelMap(voxels, GRID, {1: "liver"}))
    (raw / "dataset.json").write_text('{"labels": {"background": 0, "liver": 1}}')
    opened = RawDataset.open(raw, workers=1, progress=False)
    prepare(opened, folder / "prepared", PrepareConfig((8.0, 8.0, 8.0)), workers=1, progress=False)
    return folder / "predictions", raw, folder / "prepared"


def cases_of(split):
    return tuple(case for case in CASES if SPLITS[case] == split)


def test_every_split_has_cases():
    assert all(COUNTS.values())


def test_where_the_prepared_dataset_is_known_its_test_cases_are_scored(folders, caplog):
    predictions, raw, prepared = folders
    found = evaluate(predictions, raw, workers=1, prepared=prepared)
    assert found.cases == cases_of("test")
    assert (found.splits.scored, found.splits.source) == ("test", "prepared dataset")
    assert found.without_truth == ()  # a prediction of another split is no prediction without a truth
    assert not caplog.records


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("known", [True, False])
def test_a_split_is_the_same_by_the_prepared_dataset_and_by_the_names(folders, split, known, caplog):
    predictions, raw, prepared = folders
    found = evaluate(predictions, raw, workers=1, split=split, prepared=prepared if known else None)
    assert found.cases == cases_of(split)
    assert found.splits.source == ("prepared dataset" if known else "case names")
    assert not caplog.records


@pytest.mark.parametrize(("split", "known"), [(None, False), ("all", False), ("all", True)])
def test_training_cases_among_those_scored_are_counted_in_a_warning(folders, split, known, caplog):
    predictions, raw, prepared = folders
    found = evaluate(predictions, raw, workers=1, split=split, prepared=prepared if known else None)
    assert found.cases == tuple(CASES)
    (warning,) = caplog.messages
    assert f"{COUNTS['train']} of {len(CASES)} cases scored were used for training" in warning
    assert f"{COUNTS['validation']} for validation" in warning
    assert ("If this dataset" in warning) == (not known)  # names alone do not show whether it was learned


def test_of_a_plain_folder_of_labels_the_splits_are_not_known(folders, caplog):
    predictions, raw, prepared = folders
    found = evaluate(predictions, raw / "labelsTr", workers=1)
    assert found.splits.counts(found.cases) == {"train": 0, "validation": 0, "test": 0, "unknown": len(CASES)}
    assert "is not known" in caplog.messages[0]
    with pytest.raises(DatasetError, match="labelsTr"):
        evaluate(predictions, raw / "labelsTr", workers=1, split="test")
    assert evaluate(predictions, raw / "labelsTr", workers=1, prepared=prepared).cases == cases_of("test")


def test_a_split_without_a_prediction_is_refused_with_what_was_found(folders, tmp_path):
    predictions, raw, prepared = folders
    train = cases_of("train")
    (tmp_path / "some").mkdir()
    for case in train:
        shutil.copy(predictions / f"{case}.nii.gz", tmp_path / "some")
    with pytest.raises(DatasetError, match=f"{len(train)} train"):
        evaluate(tmp_path / "some", raw, workers=1, prepared=prepared)


def test_a_split_that_does_not_exist_is_refused(folders):
    predictions, raw, _ = folders
    with pytest.raises(ConfigError, match="'exam'"):
        evaluate(predictions, raw, workers=1, split="exam")


def test_split_and_counts_are_recorded_in_json_and_csv_and_read_back(folders, tmp_path):
    predictions, raw, prepared = folders
    found = evaluate(predictions, raw, workers=1, split="all", prepared=prepared)
    found.write(tmp_path)
    data = json.loads((tmp_path / "evaluation.json").read_text())
    assert (data["split"], data["split_known_by"]) == ("all", "prepared dataset")
    assert data["cases_per_split"] == COUNTS | {"unknown": 0}
    rows = list(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))
    assert {row["case"]: row["split"] for row in rows} == SPLITS
    mean = list(csv.DictReader((tmp_path / "organs.csv").read_text().splitlines()))[-1]
    assert (mean["split"], int(mean["train_cases"])) == ("all", COUNTS["train"])
    assert Evaluation.read(tmp_path).splits == found.splits


def test_an_evaluation_of_an_earlier_version_is_read_as_of_unknown_splits(folders, tmp_path):
    predictions, raw, prepared = folders
    evaluate(predictions, raw, workers=1, prepared=prepared).write(tmp_path)
    data = json.loads((tmp_path / "evaluation.json").read_text())
    (tmp_path / "evaluation.json").write_text(
        json.dumps({key: value for key, value in data.items() if "split" not in key})
    )
    assert Evaluation.read(tmp_path).splits == CaseSplits()
