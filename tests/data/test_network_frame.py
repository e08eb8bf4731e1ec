"""The frame turns our arrays into those of other readers, and back, for every orientation."""

from itertools import permutations, product

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk

from continual_segment.data.network_frame import NetworkFrame
from continual_segment.files import read_scan
from continual_segment.volume import Grid

ORIENTATIONS = ["".join(codes) for axes in permutations(("LR", "PA", "IS")) for codes in product(*axes)]
FEW = ["RAS", "LPS", "LAS", "PIR", "ASL", "SLP", "IRA"]


def write_oriented(file, voxels, codes, spacing_mm):
    """A file whose axes i, j, k run to these sides of the patient."""
    orientation = nibabel.orientations.axcodes2ornt(codes)
    affine = np.zeros((4, 4))
    affine[3, 3] = 1
    for axis, (to, direction) in enumerate(orientation):
        affine[int(to), axis] = direction * spacing_mm[axis]
    nibabel.save(nibabel.Nifti1Image(voxels, affine), file)


def scan_file(folder, codes):
    file = folder / f"{codes}.nii.gz"
    voxels = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7)
    write_oriented(file, voxels, codes, (0.7, 1.9, 3.3))
    return file


def test_there_are_48_orientations():
    assert len(set(ORIENTATIONS)) == 48


@pytest.mark.parametrize("transpose_forward", list(permutations(range(3))))
def test_there_and_back_is_the_identity_for_every_orientation(transpose_forward):
    voxels = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)  # with a channel in front
    for codes in ORIENTATIONS:
        frame = NetworkFrame.of_reader("SimpleITKIO", codes, transpose_forward)
        there = frame.to_network(voxels)
        assert there.shape == (2, *frame.in_network_order((3, 4, 5)))
        assert np.shares_memory(there, voxels)
        assert np.array_equal(frame.from_network(there), voxels)
        assert np.array_equal(frame.to_network(frame.from_network(there)), there)


def test_every_orientation_has_a_frame_of_its_own():
    frames = {NetworkFrame.of_reader("NibabelIO", codes) for codes in ORIENTATIONS}
    assert len(frames) == 48


@pytest.mark.parametrize("codes", FEW)
@pytest.mark.parametrize("transpose_forward", [(0, 1, 2), (1, 0, 2), (2, 0, 1)])
def test_a_file_has_the_axes_that_simpleitk_reads(tmp_path, codes, transpose_forward):
    file = scan_file(tmp_path, codes)
    volume, image = read_scan(file), sitk.ReadImage(str(file))
    frame = NetworkFrame.of_reader("SimpleITKIO", volume.grid.orientation, transpose_forward)
    expected = sitk.GetArrayFromImage(image).transpose(transpose_forward)
    spacing = [image.GetSpacing()[::-1][axis] for axis in transpose_forward]
    assert np.array_equal(frame.to_network(volume.voxels), expected)
    assert frame.shape(volume.grid) == expected.shape
    np.testing.assert_allclose(frame.spacing_mm(volume.grid), spacing, rtol=1e-6)


@pytest.mark.parametrize("codes", FEW)
def test_a_file_has_the_axes_that_nibabel_reads(tmp_path, codes):
    file = scan_file(tmp_path, codes)
    volume, image = read_scan(file), nibabel.load(file)
    frame = NetworkFrame.of_reader("NibabelIO", volume.grid.orientation)
    assert np.array_equal(frame.to_network(volume.voxels), image.get_fdata().transpose(2, 1, 0))
    reoriented = nibabel.as_closest_canonical(image)
    frame = NetworkFrame.of_reader("NibabelIOWithReorient", volume.grid.orientation, (1, 2, 0))
    assert np.array_equal(
        frame.to_network(volume.voxels), reoriented.get_fdata().transpose(2, 1, 0).transpose(1, 2, 0)
    )


@pytest.mark.parametrize("codes", FEW)
def test_a_file_has_the_axes_that_simpleitk_reorients_to_ras(tmp_path, codes):
    file = scan_file(tmp_path, codes)
    volume, image = read_scan(file), sitk.DICOMOrient(sitk.ReadImage(str(file)), "RAS")
    frame = NetworkFrame.of_reader("SimpleITKIOWithReorient", volume.grid.orientation)
    assert np.array_equal(frame.to_network(volume.voxels), sitk.GetArrayFromImage(image))


def test_spacing_follows_the_axes():
    grid = Grid((3, 4, 5), np.diag([0.5, 1.5, 2.5, 1.0]), "ASL")
    frame = NetworkFrame.of_reader("SimpleITKIO", grid.orientation, (2, 0, 1))
    assert frame.spacing_mm(grid) == (1.5, 0.5, 2.5)  # file axes k, j, i are x, z, y; then 2, 0, 1 of those


@pytest.mark.parametrize(
    ("reader", "codes", "transpose_forward"),
    [("Tiff3DIO", "RAS", (0, 1, 2)), ("NibabelIO", "RLS", (0, 1, 2)), ("NibabelIO", "RAS", (0, 1, 1))],
)
def test_what_is_no_frame_is_refused(reader, codes, transpose_forward):
    with pytest.raises(ValueError, match="not"):
        NetworkFrame.of_reader(reader, codes, transpose_forward)
