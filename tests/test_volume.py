"""Volumes from and to other libraries: whatever the orientation, left stays left."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
from nibabel.orientations import axcodes2ornt, inv_ornt_aff

from continual_segment.errors import ContinualSegmentError, ScanError
from continual_segment.volume import Grid, LabelMap, Volume

RAS_AFFINE = np.array([[2.0, 0, 0, -30], [0, 1.5, 0, 12], [0, 0, 4, 700], [0, 0, 0, 1]])
RAS_VOXELS = np.arange(5 * 4 * 3, dtype=np.int16).reshape(5, 4, 3)  # (x, y, z)
ORIENTATIONS = [
    "".join(pairs[axis][sign] for axis, sign in zip(order, signs, strict=True))
    for pairs in [("RL", "AP", "SI")]
    for order in permutations(range(3))
    for signs in product((0, 1), repeat=3)
]


def turned(orientation: str) -> tuple[np.ndarray, np.ndarray]:
    """The same patient, stored another way."""
    change = nib.orientations.ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(orientation))
    voxels = nib.orientations.apply_orientation(RAS_VOXELS, change)
    return voxels, RAS_AFFINE @ inv_ornt_aff(change, RAS_VOXELS.shape)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_an_array_of_any_orientation_becomes_the_same_volume_and_comes_back_as_it_was(
    orientation: str,
) -> None:
    voxels, affine = turned(orientation)
    volume = Volume.from_array(voxels, affine)
    np.testing.assert_array_equal(volume.voxels, RAS_VOXELS.T)
    np.testing.assert_allclose(volume.grid.affine, RAS_AFFINE, atol=1e-9)
    np.testing.assert_array_equal(volume.to_array(), voxels)
    image = volume.to_nibabel()
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), voxels)
    np.testing.assert_allclose(image.affine, affine, atol=1e-9)


@pytest.mark.parametrize("orientation", [each for each in ORIENTATIONS if each != "RAS"])
def test_an_array_of_another_orientation_is_never_taken_for_ras(orientation: str) -> None:
    voxels, affine = turned(orientation)
    with pytest.raises(ValueError, match="from_array"):
        Volume(voxels.T, Grid(voxels.T.shape, affine))


def test_a_tilted_or_oblique_grid_is_still_ras() -> None:
    angle = np.radians(40)
    affine = np.eye(4)
    affine[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    affine[1, 2] = 0.4  # a gantry's shear
    assert Grid((3, 4, 5), affine).shape == (3, 4, 5)


def test_voxels_and_grid_must_have_one_shape() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4, 5\).*\(3, 4, 6\)"):
        Volume(np.zeros((3, 4, 5), np.int16), Grid((3, 4, 6), np.eye(4)))


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "PIR"])
def test_nibabel_simpleitk_and_files_give_the_same_volume(orientation: str, tmp_path: Path) -> None:
    voxels, affine = turned(orientation)
    image = nib.Nifti1Image(voxels, affine)
    path = tmp_path / "ct.nii.gz"
    nib.save(image, path)
    for scan in (image, path, str(path), SimpleITK.ReadImage(path), Volume.read(path)):
        volume = Volume.of(scan)
        np.testing.assert_array_equal(volume.voxels, RAS_VOXELS.T)
        np.testing.assert_allclose(volume.grid.affine, RAS_AFFINE, atol=1e-4)


def test_a_simpleitk_image_comes_back_where_it_was() -> None:
    voxels, affine = turned("LPS")
    back = Volume.from_sitk(Volume.from_array(voxels, affine).to_sitk())
    np.testing.assert_array_equal(back.voxels, RAS_VOXELS.T)
    np.testing.assert_allclose(back.grid.affine, RAS_AFFINE, atol=1e-9)


def test_a_volume_outlives_the_simpleitk_image_it_was_made_of(tmp_path: Path) -> None:
    path = tmp_path / "ct.nii.gz"
    nib.save(nib.Nifti1Image(RAS_VOXELS, RAS_AFFINE), path)
    image = SimpleITK.ReadImage(path)
    volume = Volume.from_sitk(image)
    assert not np.shares_memory(volume.voxels, SimpleITK.GetArrayViewFromImage(image))


def test_what_is_no_scan_is_refused_by_type() -> None:
    for wrong in (RAS_VOXELS, 3, None):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            Volume.of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("voxels", "affine"),
    [
        (np.zeros((3, 4)), np.eye(4)),
        (np.zeros((3, 4, 5, 2)), np.eye(4)),
        (np.zeros((3, 4, 5)), np.eye(3)),
        (np.zeros((3, 4, 5)), np.zeros((4, 4))),
        (np.full((3, 4, 5), np.nan), np.eye(4)),
        (np.zeros((3, 4, 5), complex), np.eye(4)),
    ],
)
def test_arrays_that_are_no_volume_are_refused(voxels: np.ndarray, affine: np.ndarray) -> None:
    with pytest.raises(ScanError):
        Volume.from_array(voxels, affine)


def label_map(orientation: str) -> LabelMap:
    voxels, affine = turned(orientation)
    grid = Volume.from_array(voxels, affine).grid
    labels = np.zeros(grid.shape, np.uint16)
    labels[0, 0, :2], labels[1, 1, 1], labels[2] = 7, 8, 9
    return LabelMap(labels, grid, {7: "aorta", 8: "aortic_arch", 9: "liver", 10: "spleen"})


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "IPR"])
def test_a_mask_fits_the_original_array(orientation: str) -> None:
    labels, (voxels, _) = label_map(orientation), turned(orientation)
    mask = labels.mask("Liver")
    assert mask.shape == voxels.shape
    assert mask.dtype == bool
    assert sorted(voxels[mask]) == sorted(RAS_VOXELS.T[2].ravel())


def test_a_mask_holds_the_parts_of_an_organ_unless_told_otherwise() -> None:
    labels = label_map("RAS")
    assert labels.mask("aorta").sum() == 3
    assert labels.mask("aorta", parts=False).sum() == 2
    assert labels.mask("aortic_arch").sum() == 1


def test_the_organs_of_a_label_map_are_those_found() -> None:
    assert label_map("RAS").organs == ("aorta", "aortic_arch", "liver")
    assert label_map("RAS").mask("spleen").sum() == 0


def test_an_unknown_organ_names_those_there_are() -> None:
    with pytest.raises(ContinualSegmentError, match="liver"):
        label_map("RAS").mask("livre")


def test_a_written_label_map_is_read_back_in_place_with_its_names(tmp_path: Path) -> None:
    labels, (voxels, affine) = label_map("LPS"), turned("LPS")
    labels.write(tmp_path / "labels.nii.gz")
    image = nib.load(tmp_path / "labels.nii.gz")
    assert image.shape == voxels.shape
    np.testing.assert_allclose(image.affine, affine, atol=1e-4)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), labels.to_array())
    np.testing.assert_array_equal(np.asanyarray(labels.to_nibabel().dataobj), labels.to_array())
