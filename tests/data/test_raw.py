"""Raw datasets: three layouts told apart, and every problem of every case told at once."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from continual_segment.data.raw import RawDataset
from continual_segment.errors import DatasetError

SHAPE = (8, 9, 10)  # (x, y, z)
AFFINE = np.diag([2.0, 2.0, 3.0, 1.0])
REAL_DATA = Path(__file__).parents[3] / "shared" / "data" / "open-kbp"


def scan(seed=0):
    return np.random.default_rng(seed).integers(-1000, 1200, SHAPE).astype(np.int16)


def labels(**boxes):
    """A label map with a box of two voxels a side for every number given, as in l1=(0, 0, 0)."""
    voxels = np.zeros(SHAPE, np.uint8)
    for name, (x, y, z) in boxes.items():
        voxels[x : x + 2, y : y + 2, z : z + 2] = int(name[1:])
    return voxels


def save(path, voxels, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, affine), path)
    return path


def write_nnunet(folder, listed=None, **description):
    """Two sound cases with liver and spleen."""
    listed = {"background": 0, "liver": 1, "spleen": 2} if listed is None else listed
    description = {"channel_names": {"0": "CT"}, "labels": listed, "file_ending": ".nii.gz"} | description
    for seed, case in enumerate(("a", "b")):
        save(folder / f"imagesTr/{case}_0000.nii.gz", scan(seed))
        save(folder / f"labelsTr/{case}.nii.gz", labels(l1=(0, 0, 0), l2=(4, 4, 4)))
    (folder / "dataset.json").write_text(json.dumps(description))
    return folder


@pytest.fixture
def nnunet(tmp_path):
    return write_nnunet(tmp_path / "Dataset001_Test")


@pytest.fixture
def totalsegmentator(tmp_path):
    folder = tmp_path / "total"
    for seed, case in enumerate(("s0000", "s0001")):
        save(folder / case / "ct.nii.gz", scan(seed))
        save(folder / case / "segmentations/spleen.nii.gz", labels(l1=(0, 0, 0)))
    save(folder / "s0001/segmentations/liver.nii.gz", labels(l1=(4, 4, 4)))
    (folder / "meta.csv").write_text("image_id;age\n")
    return folder


def open_dataset(folder):
    return RawDataset.open(folder, workers=1, progress=False)


def refused(folder):
    with pytest.raises(DatasetError) as caught:
        open_dataset(folder)
    return str(caught.value)


def problems(folder):
    first, *rest = refused(folder).split("\n- ")
    assert str(folder) in first
    assert f"{len(rest)} problem" in first
    return rest


# ---- the three layouts


def test_nnunet_raw_is_told_and_read(nnunet):
    dataset = open_dataset(nnunet)
    assert (dataset.layout, dataset.name) == ("nnunet", "Dataset001_Test")
    assert [organ.name for organ in dataset.organs] == ["liver", "spleen"]
    assert [case.name for case in dataset.cases] == ["a", "b"]
    assert dataset.notes == ()
    volume, label_map = dataset.read(dataset.cases[1])
    np.testing.assert_array_equal(volume.voxels.T, scan(1))
    assert label_map.names == {1: "liver", 2: "spleen"}
    assert label_map.voxels.dtype == np.uint8
    assert label_map.voxels[5, 5, 5] == 2
    assert label_map.grid is volume.grid


def test_decathlon_is_told_and_read(tmp_path):
    save(tmp_path / "imagesTr/liver_1.nii.gz", scan())
    save(tmp_path / "labelsTr/liver_1.nii.gz", labels(l1=(0, 0, 0), l2=(4, 4, 4)))
    training = [{"image": "./imagesTr/liver_1.nii.gz", "label": "./labelsTr/liver_1.nii.gz"}]
    listed = {"0": "background", "1": "liver", "2": "cancer"}
    description = {"modality": {"0": "CT"}, "labels": listed, "training": training, "test": []}
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    dataset = open_dataset(tmp_path)
    assert dataset.layout == "decathlon"
    assert [organ.name for organ in dataset.organs] == ["liver", "cancer"]
    assert [case.name for case in dataset.cases] == ["liver_1"]
    assert dataset.read(dataset.cases[0])[1].voxels[5, 5, 5] == 2


def test_totalsegmentator_is_told_and_read_and_a_missing_mask_is_empty(totalsegmentator):
    dataset = open_dataset(totalsegmentator)
    assert dataset.layout == "totalsegmentator"
    assert [organ.name for organ in dataset.organs] == ["spleen", "liver"]  # by id
    _, first = dataset.read(dataset.cases[0])
    _, second = dataset.read(dataset.cases[1])
    assert np.unique(first.voxels).tolist() == [0, 1]
    assert np.unique(second.voxels).tolist() == [0, 1, 2]
    assert second.names == {1: "spleen", 2: "liver"}


def test_numbers_with_gaps_become_one_to_n(tmp_path):
    folder = write_nnunet(tmp_path, {"background": 0, "spleen": 20, "liver": 7})
    for case in "ab":
        save(folder / f"labelsTr/{case}.nii.gz", labels(l7=(0, 0, 0), l20=(4, 4, 4)))
    dataset = open_dataset(folder)
    label_map = dataset.read(dataset.cases[0])[1]
    assert [organ.name for organ in dataset.organs] == ["liver", "spleen"]
    assert label_map.voxels[0, 0, 0] == 1
    assert label_map.voxels[5, 5, 5] == 2


def test_names_are_normalised(tmp_path):
    dataset = open_dataset(write_nnunet(tmp_path, {"background": 0, "Vertebra L5": 1, "bladder": 2}))
    assert [organ.name for organ in dataset.organs] == ["vertebrae_L5", "urinary_bladder"]


def test_scan_and_labels_may_be_stored_in_different_orientations(nnunet):
    image = nib.load(nnunet / "labelsTr/a.nii.gz")
    expected = open_dataset(nnunet).read(open_dataset(nnunet).cases[0])[1].voxels
    flipped = image.as_reoriented(np.array([[1, -1], [0, 1], [2, -1]]))
    nib.save(flipped, nnunet / "labelsTr/a.nii.gz")
    dataset = open_dataset(nnunet)
    np.testing.assert_array_equal(dataset.read(dataset.cases[0])[1].voxels, expected)


def test_several_workers_find_the_same(nnunet):
    save(nnunet / "labelsTr/b.nii.gz", labels(l9=(0, 0, 0)))
    alone = refused(nnunet)
    with pytest.raises(DatasetError) as caught:
        RawDataset.open(nnunet, workers=2, progress=False)
    assert str(caught.value) == alone


def test_a_file_that_may_not_be_read_is_one_problem_among_the_others(nnunet, monkeypatch):
    def read_scan(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("continual_segment.data.check.read_scan", read_scan)
    first, second = problems(nnunet)
    assert first.startswith("a: ")
    assert "Permission denied" in second


def test_rounding_in_a_header_is_no_problem(nnunet):
    shifted = AFFINE.copy()
    shifted[0, 3] += 0.02
    save(nnunet / "labelsTr/a.nii.gz", labels(l1=(0, 0, 0)), shifted)
    assert "a" in {case.name for case in open_dataset(nnunet).cases}


# ---- labels alone


def test_labels_are_read_as_with_the_scan_and_the_scan_is_not_opened(nnunet, totalsegmentator):
    for folder in (nnunet, totalsegmentator):
        dataset = open_dataset(folder)
        _, expected = dataset.read(dataset.cases[1])
        dataset.cases[1].scan.unlink()
        label_map = dataset.read_labels(dataset.cases[1])
        np.testing.assert_array_equal(label_map.voxels, expected.voxels)
        assert label_map.names == expected.names
        assert label_map.grid.same_place(expected.grid)


def test_labels_that_are_not_in_the_list_are_refused_without_the_scan_too(nnunet):
    save(nnunet / "labelsTr/a.nii.gz", labels(l9=(0, 0, 0)))
    dataset = RawDataset.open(nnunet, check=False)
    with pytest.raises(DatasetError, match=r"a: .*labels 9 "):
        dataset.read_labels(dataset.cases[0])


def test_masks_that_do_not_fit_each_other_are_refused_without_the_scan_too(totalsegmentator):
    save(totalsegmentator / "s0001/segmentations/spleen.nii.gz", labels(l1=(0, 0, 0))[:-1])
    dataset = RawDataset.open(totalsegmentator, check=False)
    with pytest.raises(DatasetError, match=r"7 x 9 x 10 voxels.*liver\.nii\.gz 8 x 9 x 10"):
        dataset.read_labels(dataset.cases[1])


# ---- what is no dataset


def test_a_folder_that_is_not_there_is_reported(tmp_path):
    assert "no such folder" in refused(tmp_path / "nowhere")


def test_a_folder_that_is_no_dataset_tells_what_was_looked_for_and_found(tmp_path):
    assert "found an empty folder" in refused(tmp_path)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "scans").mkdir()
    message = refused(tmp_path)
    assert "dataset.json" in message
    assert "ct.nii.gz" in message
    assert "found notes.txt, scans/" in message


@pytest.mark.parametrize("finished", [True, False])
def test_a_prepared_dataset_in_place_of_a_raw_one_is_reported(tmp_path, finished):
    (tmp_path / "cases/a").mkdir(parents=True)
    (tmp_path / "cases/a/case.json").write_text("{}")
    if finished:
        (tmp_path / "dataset.json").write_text('{"format": 1}')
    assert "this is a prepared dataset" in refused(tmp_path)


def test_the_folder_above_a_dataset_points_to_it(nnunet):
    assert f"Did you mean {nnunet}?" in refused(nnunet.parent)


def test_a_dataset_json_that_is_no_json_or_has_no_labels_is_reported(nnunet):
    (nnunet / "dataset.json").write_text("{labels")
    assert "no valid JSON" in refused(nnunet)
    (nnunet / "dataset.json").write_text("{}")
    assert '"labels"' in refused(nnunet)


def test_a_dataset_without_cases_is_refused(nnunet):
    for path in (*nnunet.glob("imagesTr/*"), *nnunet.glob("labelsTr/*")):
        path.unlink()
    assert "not one case" in refused(nnunet)


# ---- the list of labels


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        (
            {"background": 0, "bladder": 1, "urinary_bladder": 2},
            "urinary_bladder occurs 2 times, as 'bladder' and",
        ),
        ({"background": 0, "liver": 1, "Liver": 2}, "liver occurs 2 times"),
        ({"background": 0, "liver": 1, "spleen": 1}, "'liver' and 'spleen' share number 1"),
        ({"background": 0, "liver": [1, 2], "spleen": 2}, "'liver' is a region of several numbers"),
        ({"background": 0, "liver": 1, "ignore": 2}, "'ignore' marks voxels without a label"),
        ({"liver": 0, "spleen": 1}, "'liver' has number 0"),
        ({"background": 1, "liver": 2}, "'background' has number 1"),
        ({"background": 0, "liver": "one"}, "has the number 'one'"),
        ({"background": 0, "liver": -1}, "has the number -1"),
        ({"background": 0, "--": 1}, "number 1 has no name"),
        ({"background": 0}, "names no organ"),
    ],
)
def test_a_list_of_labels_that_cannot_be_is_refused(tmp_path, listed, sentence):
    assert any(sentence in problem for problem in problems(write_nnunet(tmp_path, listed)))


def test_a_name_repeated_in_the_json_does_not_lose_an_organ(nnunet):
    (nnunet / "dataset.json").write_text('{"labels": {"background": 0, "liver": 1, "liver": 2}}')
    assert any("liver occurs 2 times" in problem for problem in problems(nnunet))


def test_several_channels_are_refused(tmp_path):
    folder = write_nnunet(tmp_path, channel_names={"0": "CT", "1": "PET"})
    save(folder / "imagesTr/a_0001.nii.gz", scan())
    several, further = problems(folder)
    assert "2 channels, CT, PET" in several
    assert "a_0001.nii.gz is a further channel" in further


def test_other_modalities_are_refused(tmp_path):
    assert "CT was expected" in problems(write_nnunet(tmp_path, channel_names={"0": "T2 MRI"}))[0]


def test_other_file_formats_are_refused(tmp_path):
    assert "'.png'" in problems(write_nnunet(tmp_path, file_ending=".png"))[0]


# ---- cases


def test_missing_pairs_are_told_both_ways(nnunet):
    (nnunet / "labelsTr/a.nii.gz").unlink()
    (nnunet / "imagesTr/b_0000.nii.gz").unlink()
    assert problems(nnunet) == [
        "a: the scan has no label map labelsTr/a.nii.gz.",
        "b: the label map has no scan imagesTr/b_0000.nii.gz.",
    ]


def test_a_scan_without_channel_number_is_reported(nnunet):
    (nnunet / "imagesTr/a_0000.nii.gz").rename(nnunet / "imagesTr/a.nii.gz")
    assert problems(nnunet)[0] == "imagesTr/a.nii.gz has no channel number. Rename it a_0000.nii.gz."


def test_missing_pairs_of_the_decathlon_are_reported(tmp_path):
    save(tmp_path / "imagesTr/x.nii.gz", scan())
    training = [{"image": "imagesTr/x.nii.gz", "label": "labelsTr/x.nii.gz"}, {"image": "imagesTr/y.nii.gz"}]
    (tmp_path / "dataset.json").write_text(
        json.dumps({"labels": {"0": "bg", "1": "liver"}, "training": training})
    )
    lacking, absent = sorted(problems(tmp_path))
    assert "Entry 1" in lacking
    assert "labelsTr/x.nii.gz, which is not there" in absent


def test_missing_parts_of_the_totalsegmentator_layout_are_reported(totalsegmentator):
    (totalsegmentator / "s0000/ct.nii.gz").unlink()
    for mask in totalsegmentator.glob("s0001/segmentations/*"):
        mask.unlink()
    assert problems(totalsegmentator) == [
        "s0000: the folder has segmentations but no scan ct.nii.gz.",
        "s0001: the scan has no masks segmentations/<organ>.nii.gz.",
    ]


def test_two_masks_of_one_organ_in_a_case_are_reported(totalsegmentator):
    save(totalsegmentator / "s0000/segmentations/Spleen.nii.gz", labels(l1=(0, 0, 0)))
    assert "s0000: The organ spleen occurs 2 times" in problems(totalsegmentator)[0]


def only_problem(folder):
    (problem,) = problems(folder)
    return problem


def test_shapes_that_differ_are_told_with_both_shapes(nnunet):
    save(nnunet / "labelsTr/a.nii.gz", labels(l1=(0, 0, 0))[:, :, :-1])
    assert "labels are 8 x 9 x 9 voxels, the scan 8 x 9 x 10" in only_problem(nnunet)


def test_affines_that_differ_are_reported(nnunet):
    shifted = AFFINE.copy()
    shifted[2, 3] += 5
    save(nnunet / "labelsTr/a.nii.gz", labels(l1=(0, 0, 0)), shifted)
    assert "affines differ" in only_problem(nnunet)


def test_labels_that_are_not_in_the_list_are_reported(nnunet):
    save(nnunet / "labelsTr/a.nii.gz", labels(l1=(0, 0, 0), l7=(2, 2, 2), l9=(4, 4, 4)))
    assert "labels 7, 9 are not in the dataset's list, which has 1, 2" in only_problem(nnunet)


def test_labels_that_are_no_whole_numbers_are_reported(nnunet):
    save(nnunet / "labelsTr/a.nii.gz", labels(l1=(0, 0, 0)).astype(np.float32) / 2)
    assert "whole numbers" in only_problem(nnunet)


def test_nan_in_a_scan_is_reported(nnunet):
    voxels = scan().astype(np.float32)
    voxels[0, 0, 0] = np.nan
    save(nnunet / "imagesTr/a_0000.nii.gz", voxels)
    assert "1 voxels are NaN" in only_problem(nnunet)


def test_an_empty_scan_is_reported(nnunet):
    save(nnunet / "imagesTr/a_0000.nii.gz", np.full(SHAPE, -1000, np.int16))
    assert "the scan is empty, every voxel is -1000" in only_problem(nnunet)


@pytest.mark.parametrize("path", ["imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz"])
def test_a_4d_file_is_reported(nnunet, path):
    save(nnunet / path, np.zeros((*SHAPE, 2), np.int16))
    assert "4 axes" in only_problem(nnunet)


@pytest.mark.parametrize("path", ["imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz"])
def test_a_truncated_file_is_reported(nnunet, path):
    data = (nnunet / path).read_bytes()
    (nnunet / path).write_bytes(data[: len(data) // 2])
    assert "truncated" in only_problem(nnunet)


def between(lowest, highest):
    return np.interp(scan(), (-1000, 1200), (lowest, highest)).astype(np.float32)


@pytest.mark.parametrize(
    ("lowest", "highest", "sentence"),
    [
        (0, 1, "air is -1000"),
        (0, 255, "air is -1000"),
        (24, 2200, "air is -1000"),
        (-1, 1, "look normalised"),
        (-3, 9, "look normalised"),
        (-32768, 3000, "-10000 to 40000 was expected"),
        (-1000, 65535, "-10000 to 40000 was expected"),
    ],
)
def test_values_that_cannot_be_hounsfield_units_are_reported(nnunet, lowest, highest, sentence):
    save(nnunet / "imagesTr/a_0000.nii.gz", between(lowest, highest))
    problem = only_problem(nnunet)
    assert "cannot be Hounsfield units" in problem
    assert sentence in problem


@pytest.mark.parametrize(("lowest", "highest"), [(-3024, 3071), (-2000, 30_000), (-1000, 2000), (-160, 240)])
def test_padding_metal_and_clipped_scans_are_legal(nnunet, lowest, highest):
    save(nnunet / "imagesTr/a_0000.nii.gz", between(lowest, highest))
    open_dataset(nnunet)


def test_every_problem_of_every_case_is_listed_at_once(nnunet):
    save(nnunet / "imagesTr/a_0000.nii.gz", between(0, 1))
    save(nnunet / "labelsTr/a.nii.gz", labels(l9=(0, 0, 0))[:, :, :-1])
    save(nnunet / "imagesTr/b_0000.nii.gz", np.full(SHAPE, 0, np.int16))
    save(nnunet / "labelsTr/c.nii.gz", labels())
    listed = problems(nnunet)
    assert [problem.split(":")[0] for problem in listed] == ["c", "a", "a", "a", "b"]


def test_an_unchecked_dataset_still_refuses_a_bad_case_when_it_is_read(nnunet):
    save(nnunet / "labelsTr/a.nii.gz", labels(l9=(0, 0, 0)))
    dataset = RawDataset.open(nnunet, check=False)
    with pytest.raises(DatasetError, match="labels 9 "):
        dataset.read(dataset.cases[0])


# ---- notes


def test_where_masks_overlap_the_smaller_organ_wins_and_a_note_says_so(totalsegmentator):
    large = labels(l1=(0, 0, 0))
    large[:4] = 1
    save(totalsegmentator / "s0001/segmentations/liver.nii.gz", large)
    dataset = open_dataset(totalsegmentator)
    label_map = dataset.read(dataset.cases[1])[1]
    assert label_map.names[label_map.voxels[0, 0, 0]] == "spleen"
    assert label_map.names[label_map.voxels[0, 0, 3]] == "liver"
    (note,) = dataset.notes
    assert "liver and spleen overlap in 8 voxels of s0001" in note
    assert "smaller" in note


def test_of_equally_large_masks_the_first_by_name_wins(totalsegmentator):
    save(totalsegmentator / "s0001/segmentations/liver.nii.gz", labels(l1=(0, 0, 0)))
    dataset = open_dataset(totalsegmentator)
    label_map = dataset.read(dataset.cases[1])[1]
    assert label_map.names[label_map.voxels[0, 0, 0]] == "liver"


def test_a_mask_with_several_labels_is_reported(totalsegmentator):
    save(totalsegmentator / "s0001/segmentations/liver.nii.gz", labels(l1=(0, 0, 0), l2=(4, 4, 4)))
    assert "a mask of one organ holds the labels 1, 2" in only_problem(totalsegmentator)


def test_a_mask_of_0_and_255_is_a_mask(totalsegmentator):
    save(totalsegmentator / "s0001/segmentations/liver.nii.gz", labels(l255=(4, 4, 4)))
    dataset = open_dataset(totalsegmentator)
    assert dataset.read(dataset.cases[1])[1].voxels.max() == 2


def test_a_mask_on_another_grid_is_reported(totalsegmentator):
    save(totalsegmentator / "s0001/segmentations/liver.nii.gz", labels(l1=(0, 0, 0))[:-1])
    assert "labels are 7 x 9 x 10 voxels, the scan 8 x 9 x 10" in only_problem(totalsegmentator)


def test_cases_without_any_organ_are_noted(nnunet):
    save(nnunet / "labelsTr/b.nii.gz", labels())
    assert open_dataset(nnunet).notes == ("No organ is labelled in 1 of 2 cases: b.",)


def test_the_real_head_and_neck_dataset_passes():
    folder = REAL_DATA / "Dataset104_EsophagusTumour"
    if not folder.is_dir():
        pytest.skip(f"no real scans at {folder}")
    dataset = open_dataset(folder)
    assert [organ.name for organ in dataset.organs] == ["esophagus"]
    assert len(dataset.cases) == 20
    assert dataset.notes == ()
