"""The split that a dataset publishes, in the layout of the public TotalSegmentator datasets."""

import nibabel as nib
import numpy as np
import pytest

from continual_segment.data.meta_table import published_splits
from continual_segment.data.prepare import prepare
from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.data.raw import RawDataset
from continual_segment.data.splits import split_cases
from continual_segment.errors import DatasetError
from continual_segment.evaluation.label_source import open_labels

HEADER = "image_id;age;gender;institute;study_type;split;manufacturer;pathology\n"
CASES = [f"s{number:04}" for number in range(6)]
SPLITS = ["train", "train", "val", "test", "test", "train"]


def row(case, split):
    return f"{case};61;m;A;ct thorax;{split};siemens;tumor\n"


def save(path, voxels):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, np.diag([3.0, 3.0, 3.0, 1.0])), path)


@pytest.fixture(scope="module")
def total(tmp_path_factory):
    """Six cases as in the public dataset: a mask per organ in every case, empty where the organ is not."""
    folder = tmp_path_factory.mktemp("miniature") / "Totalsegmentator_dataset_v201"
    for number, case in enumerate(CASES):
        rng = np.random.default_rng(number)
        save(folder / case / "ct.nii.gz", rng.normal(0, 100, (12, 12, 12)).astype(np.int16))
        for organ, present in (("spleen", True), ("liver", number % 2 == 0), ("kidney_left", number == 0)):
            mask = np.zeros((12, 12, 12), np.uint8)
            if present:
                mask[2 + len(organ) % 5 :: 4, 3:6, 3:6] = 1
            save(folder / case / "segmentations" / f"{organ}.nii.gz", mask)
    (folder / CASES[5] / "segmentations" / "liver.nii.gz").unlink()  # no mask at all
    return folder


def write_meta(folder, splits, cases=CASES):
    rows = [row(case, split) for case, split in zip(cases, splits, strict=True)]
    (folder / "meta.csv").write_text(
        "\ufeff" + HEADER + "".join(rows) + row("s9999", "test"), encoding="utf-8"
    )


def test_a_published_split_is_that_of_the_prepared_dataset(total, tmp_path):
    write_meta(total, SPLITS)
    raw = RawDataset.open(total, workers=1, progress=False)
    prepared = prepare(raw, tmp_path / "p", PrepareConfig((3.0, 3.0, 3.0)), workers=1, progress=False)
    expected = dict(zip(CASES, ["validation" if split == "val" else split for split in SPLITS], strict=True))
    assert prepared.splits == expected
    assert open_labels(total).splits == expected
    assert {organ.name for organ in prepared.organs} == {"spleen", "liver", "kidney_left"}


def test_cases_that_the_table_does_not_list_are_split_by_their_names(total):
    write_meta(total, SPLITS[:2], CASES[:2])
    splits = RawDataset.open(total, workers=1, progress=False).splits
    assert (splits["s0000"], splits["s0001"]) == ("train", "train")
    assert {case: splits[case] for case in CASES[2:]} == split_cases(CASES[2:])


@pytest.mark.parametrize("text", ["image_id;age\ns0000;61\n", "", "split\ntrain\n"])
def test_a_table_without_the_two_columns_decides_nothing(text, tmp_path):
    (tmp_path / "meta.csv").write_text(text)
    assert published_splits(tmp_path / "meta.csv", CASES) == ({}, [])


def test_without_published_validation_cases_some_training_cases_are_and_no_test_case(tmp_path):
    cases = [f"s{number:04}" for number in range(60)]
    rows = [row(case, "test" if number % 3 == 0 else "train") for number, case in enumerate(cases)]
    (tmp_path / "meta.csv").write_text(HEADER + "".join(rows))
    splits, _ = published_splits(tmp_path / "meta.csv", cases)
    assert {case for case in cases if splits[case] == "test"} == set(cases[::3])
    assert 1 <= list(splits.values()).count("validation") < 20


def test_an_unknown_split_is_a_problem_that_names_case_and_word(total):
    write_meta(total, ["train", "holdout", *SPLITS[2:]])
    with pytest.raises(DatasetError) as caught:
        RawDataset.open(total, workers=1, progress=False)
    assert str(total) in str(caught.value)
    assert "'holdout'" in str(caught.value)
    assert "s0001" in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00bad", b"image_id;split\n" + b"\x00" * 10])
def test_a_damaged_table_is_a_problem_and_no_traceback(content, tmp_path):
    path = tmp_path / "meta.csv"
    path.write_bytes(content)
    splits, problems = published_splits(path, CASES)
    assert splits == {}
    assert all("meta.csv" in problem for problem in problems)
