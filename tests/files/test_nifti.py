"""NIfTI in and out: nothing moves in the patient, and what is no scan is refused in one sentence."""

from __future__ import annotations

import gzip
import itertools
import re
import struct
import tracemalloc
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.errors import ScanError
from continual_segment.files import (
    is_scan_file,
    name_of_scan,
    read_labels,
    read_scan,
    write_labels,
    write_scan,
)
from continual_segment.files.label_table import label_table, read_label_table
from continual_segment.files.nrrd import segment_names
from continual_segment.files.organ_colours import label_colour
from continual_segment.organs import find_organ
from continual_segment.volume import Grid, LabelMap, Volume

SHAPE_XYZ = (5, 6, 7)
ORIENTATIONS = [
    "".join(axes)
    for order in itertools.permutations(("LR", "PA", "IS"))
    for axes in itertools.product(*order)
]
REAL_DATA = Path(__file__).parents[3] / "shared" / "data"


def save(path, voxels, affine=None, **header):
    image = nib.Nifti1Image(voxels, np.diag([2.0, 2.0, 3.0, 1.0]) if affine is None else affine)
    for field, value in header.items():
        image.header[field] = value
    nib.save(image, path)
    return path


def some_scan(shape=SHAPE_XYZ):
    return (np.arange(np.prod(shape)).reshape(shape) * 7 - 1000).astype(np.int16)


def oriented(voxels, affine, orientation):
    """The same image with its voxels stored in another order."""
    image = nib.Nifti1Image(voxels, affine)
    change = nib.orientations.ornt_transform(
        nib.io_orientation(affine), nib.orientations.axcodes2ornt(orientation)
    )
    return image.as_reoriented(change)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_every_orientation_is_read_to_the_same_volume_and_written_back_as_it_was(tmp_path, orientation):
    affine = np.diag([1.5, 2.0, 3.0, 1.0])
    affine[:3, 3] = (-10, 20, 30)
    image = oriented(some_scan(), affine, orientation)
    nib.save(image, tmp_path / "scan.nii")

    volume = read_scan(tmp_path / "scan.nii")
    assert volume.grid.orientation == orientation
    np.testing.assert_array_equal(volume.voxels, some_scan().T)
    np.testing.assert_allclose(volume.grid.affine, affine)
    assert volume.grid.spacing_mm == pytest.approx((3.0, 2.0, 1.5))

    write_scan(tmp_path / "again.nii.gz", volume)
    again = nib.load(tmp_path / "again.nii.gz")
    np.testing.assert_array_equal(np.asanyarray(again.dataobj), np.asanyarray(image.dataobj))
    np.testing.assert_allclose(again.affine, image.affine, atol=1e-5)


def rotation(angles):
    x, y, z = angles
    turn_x = np.array([[1, 0, 0], [0, np.cos(x), -np.sin(x)], [0, np.sin(x), np.cos(x)]])
    turn_y = np.array([[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]])
    turn_z = np.array([[np.cos(z), -np.sin(z), 0], [np.sin(z), np.cos(z), 0], [0, 0, 1]])
    return turn_x @ turn_y @ turn_z


angle = st.floats(-np.pi, np.pi)
spacing = st.floats(0.3, 8)


@settings(max_examples=60, deadline=None)
@given(
    angles=st.tuples(angle, angle, angle),
    spacing_mm=st.tuples(spacing, spacing, spacing),
    flip=st.booleans(),
    origin=st.tuples(*[st.floats(-500, 500)] * 3),
)
def test_oblique_scans_keep_every_voxel_at_its_place(tmp_path_factory, angles, spacing_mm, flip, origin):
    folder = tmp_path_factory.mktemp("oblique")
    affine = np.eye(4)
    affine[:3, :3] = rotation(angles) @ np.diag(spacing_mm) @ np.diag([-1 if flip else 1, 1, 1])
    affine[:3, 3] = origin
    save(folder / "scan.nii", some_scan(), affine)
    volume = read_scan(folder / "scan.nii")
    found, expected = places(volume.voxels.T, volume.grid.affine), places(some_scan(), affine)
    np.testing.assert_allclose(found, expected, atol=1e-3)

    write_scan(folder / "again.nii", volume)
    again = nib.load(folder / "again.nii")
    np.testing.assert_array_equal(np.asanyarray(again.dataobj), some_scan())
    np.testing.assert_allclose(again.affine, affine, atol=1e-3)
    np.testing.assert_allclose(again.get_qform(), affine, atol=1e-2)


def places(voxels, affine):
    """Where a few values lie, in millimetres right, anterior, superior."""
    indices = [np.argwhere(voxels == value)[0] for value in (-1000, -993, -951, -706, 463)]
    return np.array([(affine @ [*index, 1])[:3] for index in indices])


def test_slope_and_intercept_are_applied(tmp_path):
    path = save(tmp_path / "scan.nii.gz", some_scan())
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[112:120] = np.array([2.0, -24.0], "<f4").tobytes()  # scl_slope, scl_inter
    path.write_bytes(gzip.compress(bytes(data)))
    voxels = read_scan(path).voxels
    assert voxels.dtype == np.float32
    np.testing.assert_array_equal(voxels.T, some_scan() * 2.0 - 24)


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ("i2", "i2"),
        (">i2", "i2"),
        ("u1", "i2"),
        ("u2", "i2"),
        ("i4", "i2"),
        ("f4", "f4"),
        ("f8", "f4"),
        (">f4", "f4"),
    ],
)
def test_scans_of_every_number_type_become_int16_or_float32(tmp_path, stored, read):
    voxels = (np.arange(8).reshape(2, 2, 2) * 30).astype(stored)
    scan = read_scan(save(tmp_path / "scan.nii", voxels)).voxels
    assert scan.dtype == np.dtype(read)
    assert scan.flags.c_contiguous
    np.testing.assert_array_equal(scan.T, voxels)


def test_numbers_too_large_for_int16_are_not_wrapped(tmp_path):
    voxels = np.array([-1000, 40_000], np.int32).reshape(1, 1, 2)
    assert read_scan(save(tmp_path / "scan.nii", voxels)).voxels.ravel().tolist() == [-1000, 40_000]


def test_a_trailing_axis_of_length_one_is_dropped(tmp_path):
    save(tmp_path / "scan.nii", some_scan()[..., None])
    assert read_scan(tmp_path / "scan.nii").voxels.shape == (7, 6, 5)


def test_nifti_2_and_uncompressed_files_with_a_gz_name_are_read(tmp_path):
    nib.save(nib.Nifti2Image(some_scan(), np.eye(4)), tmp_path / "two.nii")
    (tmp_path / "plain.nii.gz").write_bytes((tmp_path / "two.nii").read_bytes())
    np.testing.assert_array_equal(read_scan(tmp_path / "plain.nii.gz").voxels.T, some_scan())


# ---- refusals


def refused(path, read=read_scan):
    with pytest.raises(ScanError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    return message


def test_a_missing_file_is_named(tmp_path):
    assert "there is no such file" in refused(tmp_path / "scan.nii.gz")


def test_an_unknown_suffix_lists_the_known_ones(tmp_path):
    assert ".nii.gz, .nii" in refused(tmp_path / "scan.mgz")


@pytest.mark.parametrize("kept", [0.5, 0.9, -1])
def test_a_truncated_gzip_file_is_told_even_when_one_byte_is_missing(tmp_path, kept):
    path = save(tmp_path / "scan.nii.gz", np.random.default_rng(0).integers(-1000, 1000, (8, 8, 8), np.int16))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)] if kept > 0 else data[:kept])
    assert "truncated or damaged" in refused(path)


def test_a_flipped_bit_in_a_gzip_file_is_reported(tmp_path):
    path = tmp_path / "scan.nii.gz"
    write_scan(path, read_scan(save(tmp_path / "whole.nii", some_scan())))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # within the checksum
    path.write_bytes(data)
    assert "truncated or damaged" in refused(path)


def peak_bytes(function, *arguments):
    """Of the memory that a call allocates."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MEBIBYTE = 2**20


def test_a_file_that_unpacks_to_more_than_its_header_speaks_of_costs_no_memory(tmp_path):
    path = save(tmp_path / "scan.nii", some_scan())
    packed = tmp_path / "scan.nii.gz"
    packed.write_bytes(gzip.compress(path.read_bytes() + bytes(400 * MEBIBYTE), 1))
    assert peak_bytes(read_scan, packed) < 100 * MEBIBYTE
    np.testing.assert_array_equal(read_scan(packed).voxels.T, some_scan())
    packed.write_bytes(packed.read_bytes()[:-1])
    assert "truncated or damaged" in refused(packed)


def test_a_header_of_no_possible_size_is_refused_before_its_file_is_unpacked(tmp_path):
    path = save(tmp_path / "scan.nii", some_scan())
    data = bytearray(path.read_bytes() + bytes(400 * MEBIBYTE))
    data[42:48] = struct.pack("<hhh", 32000, 32000, 32000)
    packed = tmp_path / "scan.nii.gz"
    packed.write_bytes(gzip.compress(data, 1))
    assert peak_bytes(refused, packed) < 100 * MEBIBYTE
    assert "no CT is so large" in refused(packed)


@pytest.mark.parametrize("offset", [np.nan, 1e30, -400.0, 1e6])
def test_voxels_at_a_place_that_cannot_be_are_refused(tmp_path, offset):
    data = bytearray(save(tmp_path / "scan.nii", some_scan()).read_bytes())
    data[108:112] = struct.pack("<f", offset)
    (tmp_path / "scan.nii.gz").write_bytes(gzip.compress(data))
    assert "damaged or cut short" in refused(tmp_path / "scan.nii.gz")


def test_gzip_files_of_several_members_are_read_and_checked_to_the_end(tmp_path):
    data = save(tmp_path / "scan.nii", some_scan()).read_bytes()
    parts = [data[:3], b"", data[3:400], data[400:]]
    packed = b"".join(gzip.compress(part) + bytes(5) for part in parts)
    path = tmp_path / "scan.nii.gz"
    path.write_bytes(packed)
    np.testing.assert_array_equal(read_scan(path).voxels.T, some_scan())
    for damaged in (packed[:-10], packed + b"more", packed + gzip.compress(b"more")[:-1]):
        path.write_bytes(damaged)
        assert "truncated or damaged" in refused(path)


def test_a_truncated_plain_file_is_reported(tmp_path):
    path = save(tmp_path / "scan.nii", some_scan())
    path.write_bytes(path.read_bytes()[:-20])
    assert "cut short" in refused(path)


@pytest.mark.parametrize("content", [b"", b"PNG", b"x" * 1000])
def test_what_is_no_nifti_is_reported(tmp_path, content):
    (tmp_path / "scan.nii").write_bytes(content)
    assert "no NIfTI file" in refused(tmp_path / "scan.nii")


def test_a_4d_file_is_refused_with_its_shape(tmp_path):
    message = refused(save(tmp_path / "scan.nii", np.zeros((4, 5, 6, 2), np.int16)))
    assert "4 axes, 4 x 5 x 6 x 2" in message


def test_a_2d_file_is_refused(tmp_path):
    assert "2 axes, 4 x 5" in refused(save(tmp_path / "scan.nii", np.zeros((4, 5), np.int16)))


def test_colour_images_are_refused(tmp_path):
    colours = np.zeros((4, 4, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert "plain numbers" in refused(save(tmp_path / "scan.nii", colours))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_counted(tmp_path, value):
    voxels = some_scan().astype(np.float32)
    voxels[0, 0, :3] = value
    assert "3 voxels are NaN or infinite" in refused(save(tmp_path / "scan.nii", voxels))


@pytest.mark.parametrize("size", [0.0, np.nan, np.inf])
def test_a_voxel_size_that_cannot_be_is_refused(tmp_path, size):
    path = save(tmp_path / "scan.nii", some_scan())
    data = bytearray(path.read_bytes())
    data[280:284] = np.array(size, "<f4").tobytes()  # srow_x[0]
    path.write_bytes(data)
    assert "voxel size in the header" in refused(path)


def test_a_singular_affine_is_refused(tmp_path):
    path = save(tmp_path / "scan.nii", some_scan())
    data = bytearray(path.read_bytes())
    data[280:328] = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]], "<f4").tobytes()
    path.write_bytes(data)
    assert "affine is singular" in refused(path)


# ---- labels


@pytest.mark.parametrize(
    ("highest", "dtype"), [(1, np.uint8), (255, np.uint8), (256, np.uint16), (65535, np.uint16)]
)
def test_labels_come_back_in_the_smallest_type(tmp_path, highest, dtype):
    voxels = np.zeros(SHAPE_XYZ, np.float64)
    voxels[1, 2, 3] = highest
    labels = read_labels(save(tmp_path / "labels.nii", voxels))
    assert labels.voxels.dtype == dtype
    assert labels.voxels[3, 2, 1] == highest


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (0.5, "whole numbers, but 1 voxels are not, such as 0.5"),
        (np.nan, "whole numbers"),
        (-1, "from -1 to 0"),
        (70_000, "from 0 to 70000"),
    ],
)
def test_numbers_that_are_no_labels_are_refused(tmp_path, value, sentence):
    voxels = np.zeros(SHAPE_XYZ, np.float32)
    voxels[0, 0, 0] = value
    assert sentence in refused(save(tmp_path / "labels.nii", voxels), read_labels)


def some_labels(names):
    voxels = np.zeros((7, 6, 5), np.uint8)
    voxels[2, 3, 1] = 5
    return LabelMap(voxels, Grid((7, 6, 5), np.diag([1.0, 2.0, 3.0, 1.0]), "LPS"), names)


def test_organ_names_travel_in_the_header(tmp_path):
    names = {5: "liver", 42: "esophagus & <Ösophagus>"}
    write_labels(tmp_path / "labels.nii.gz", some_labels(names))
    labels = read_labels(tmp_path / "labels.nii.gz")
    assert labels.names == names
    assert labels.grid.orientation == "LPS"
    np.testing.assert_array_equal(labels.voxels, some_labels({}).voxels)


def test_labels_without_names_have_none(tmp_path):
    write_labels(tmp_path / "labels.nii", some_labels({}))
    assert read_labels(tmp_path / "labels.nii").names == {}
    assert read_label_table(b"DICOM attributes") == {}


def test_header_says_millimetres_and_both_transforms(tmp_path):
    write_labels(tmp_path / "labels.nii", some_labels({5: "liver"}))
    header = nib.load(tmp_path / "labels.nii").header
    assert header.get_xyzt_units()[0] == "mm"
    assert (header["sform_code"], header["qform_code"]) == (1, 1)
    assert header.get_data_dtype() == np.uint8


def test_colours_of_the_first_thousand_labels_differ():
    assert len({tuple(round(part, 3) for part in label_colour(label)) for label in range(1, 1001)}) == 1000


def test_arteries_are_red_veins_blue_and_bones_golden_and_neighbours_differ():
    red, green, blue = 0, 1, 2
    for name, strongest in {"aorta": red, "iliac_vena_left": blue, "trachea": green}.items():
        assert np.argmax(label_colour(find_organ(name).id)) == strongest
    ribs = [label_colour(find_organ(f"rib_left_{number}").id) for number in range(1, 13)]
    for one, other in itertools.pairwise(ribs):
        assert one[red] > one[green] > one[blue]
        assert np.abs(np.subtract(one, other)).max() > 0.1


def test_the_same_content_gives_the_same_bytes(tmp_path):
    write_labels(tmp_path / "a.nii.gz", some_labels({5: "liver"}))
    write_labels(tmp_path / "b.nii.gz", some_labels({5: "liver"}))
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()
    assert (tmp_path / "a.nii.gz").read_bytes()[4:8] == b"\0\0\0\0"  # no clock in the gzip header


@pytest.mark.parametrize(("given", "written"), [("f8", "f4"), ("f4", "f4"), ("i8", "i2"), ("i2", "i2")])
def test_scans_are_written_as_int16_or_float32(tmp_path, given, written):
    grid = Grid((7, 6, 5), np.eye(4))
    write_scan(tmp_path / "scan.nii", Volume(some_scan().T.astype(given), grid))
    image = nib.load(tmp_path / "scan.nii")
    assert image.get_data_dtype() == np.dtype(written)
    np.testing.assert_array_equal(np.asanyarray(image.dataobj), some_scan())


def test_names_of_scans():
    assert name_of_scan("a/liver_01.nii.gz") == "liver_01"
    assert name_of_scan("liver.v2.nii") == "liver.v2"
    assert is_scan_file("a.nii")
    assert not is_scan_file("a.txt")
    assert not is_scan_file(".unfinished-a.nii")


def test_a_real_label_map_of_totalsegmentator_keeps_its_names():
    folder = REAL_DATA / "totalsegmentator-example"
    if not folder.is_dir():
        pytest.skip(f"no real scans at {folder}")
    labels, scan = read_labels(folder / "model_output.nii.gz"), read_scan(folder / "ct.nii.gz")
    assert labels.names[5] == "liver"
    assert len(labels.names) == 117
    assert scan.grid.same_place(labels.grid)
    assert re.fullmatch("[LR][AP][IS]", scan.grid.orientation)


@pytest.mark.parametrize("name", ["x.nii.gz", "x.nii"])
def test_ctrl_c_while_writing_leaves_what_was_there(tmp_path, monkeypatch, name):
    grid = Grid((3, 4, 5), np.eye(4))
    write_labels(tmp_path / name, LabelMap(np.ones(grid.shape, np.uint8), grid))
    before = (tmp_path / name).read_bytes()

    def half(self, stream):
        stream.write(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(nib.Nifti1Image, "to_stream", half)
    with pytest.raises(KeyboardInterrupt):
        write_labels(tmp_path / name, LabelMap(np.zeros(grid.shape, np.uint8), grid))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("key", ["4000000000", "9" * 5000, "65536", "-1", "0", "\u0663"])
def test_numbers_that_no_voxel_can_have_name_no_organ(key):
    table = label_table({5: "liver"}).replace(b'Key="5"', f'Key="{key}"'.encode())
    assert read_label_table(table) == {}
    assert read_label_table(label_table({5: "liver", 65535: "spleen"})) == {5: "liver", 65535: "spleen"}
    assert segment_names({"Segment0_LabelValue": key, "Segment0_Name": "liver"}) == {}
