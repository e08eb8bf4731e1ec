"""Damaged DICOM files: an error that names them; with force they are left out and noted."""

from __future__ import annotations

import pytest
from made_scans import header, read_header, save, write_enhanced, write_series, write_zip

from continual_segment.errors import ScanError
from continual_segment.files import read_source


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def reaches(path, keyword):
    """Bytes of a file up to the element of a keyword."""
    return read_header(path).get_item(keyword).value_tell - 8


@pytest.fixture
def paths(tmp_path):
    return write_series(tmp_path / "series")


def test_damaged_slices_at_both_ends_are_named_and_counted(paths):
    for path in (*paths[:4], *paths[-4:]):
        cut(path, 140)
    names = sorted(path.name for path in (*paths[:4], *paths[-4:]))
    with pytest.raises(ScanError, match="8 files ") as caught:
        read_source(paths[0].parent)
    assert ", ".join(names[:3]) + " and 5 more" in str(caught.value)


def test_with_force_damaged_slices_are_left_out_and_noted_without_their_names(paths):
    for path in (*paths[:4], *paths[-4:], paths[12]):
        cut(path, 140)
    source = read_source(paths[0].parent, force=True)
    assert source.volume.voxels.shape[0] == 18  # the one in the middle is interpolated
    assert source.notes[0].startswith("9 files of the series cannot be read")
    assert "slice_" not in " ".join(source.notes)


@pytest.mark.parametrize(
    "until", ["SOPInstanceUID", "SeriesDescription", "SeriesInstanceUID", "InstanceNumber", "PixelSpacing"]
)
def test_a_header_that_ends_anywhere_is_an_error(until, paths):
    cut(paths[0], reaches(paths[0], until))
    with pytest.raises(ScanError, match=rf"1 file .*{paths[0].name}"):
        read_source(paths[0].parent)
    assert read_source(paths[0].parent, force=True).volume.voxels.shape[0] == 25


@pytest.mark.parametrize("size", [0, 60, -500])
def test_empty_files_and_pixels_that_end_early_are_an_error_unless_forced(size, paths):
    cut(paths[3], size)
    cut(paths[-1], size)
    with pytest.raises(ScanError, match=r"2 files .*slice_021\.dcm, slice_078"):
        read_source(paths[0].parent)
    assert read_source(paths[0].parent, force=True).volume.voxels.shape[0] == 25


def test_a_file_that_lost_its_start_is_known_by_the_names_of_its_neighbours(paths):
    for path in paths:
        path.rename(path.with_name(path.stem.replace("slice_", "CT.1.3.12.")))
    damaged = sorted(paths[0].parent.iterdir())[0]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(ScanError, match=rf"1 file .*{damaged.name}"):
        read_source(paths[0].parent)


def test_a_damaged_member_of_a_zip_is_an_error(paths, tmp_path):
    cut(paths[0], 140)
    with pytest.raises(ScanError, match="1 file "):
        read_source(write_zip(tmp_path / "a.zip", paths))


def test_a_slice_of_the_series_without_a_place_is_an_error(paths):
    data = read_header(paths[0])
    del data.ImagePositionPatient
    data.save_as(paths[0])
    with pytest.raises(ScanError, match=rf"{paths[0].name} .*ImagePositionPatient"):
        read_source(paths[0].parent)


def test_a_frame_without_a_place_is_an_error(tmp_path):
    path = write_enhanced(tmp_path / "scan.dcm")
    data = read_header(path)
    del data.PerFrameFunctionalGroupsSequence[-1].PlanePositionSequence
    data.save_as(path)
    with pytest.raises(ScanError, match="1 of 26 slices have no place"):
        read_source(path)
    assert read_source(path, force=True).volume.voxels.shape[0] == 25


def test_other_files_in_the_folder_are_no_damage(paths):
    folder = paths[0].parent
    (folder / "README.txt").write_text("CT of the abdomen")
    (folder / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0" + bytes(900))
    (folder / f"._{paths[0].name}").write_bytes(b"\0\5\x16\7Mac OS X")
    (folder / "DICOMDIR").write_bytes(b"")
    (folder / "slice_000.jpg").write_bytes(b"\xff\xd8\xff")
    save(folder / "dose.dcm", header(modality="SR", SOPClassUID="1.2.840.10008.5.1.4.1.1.88.67"))
    capture = header(modality="OT", SOPClassUID="1.2.840.10008.5.1.4.1.1.7", SeriesInstanceUID="1.2.9")
    capture.Rows = capture.Columns = 4
    save(folder / "screenshot.dcm", capture)
    source = read_source(folder)
    assert (source.volume.voxels.shape[0], source.notes) == (26, ())


def test_damage_in_another_series_is_none_of_this_one_and_unknown_damage_elsewhere_is_noted(tmp_path):
    write_series(tmp_path / "a")
    others = write_series(tmp_path / "b", modality="MR", SeriesInstanceUID="1.2.3")
    cut(others[0], reaches(others[0], "PixelSpacing"))
    assert read_source(tmp_path).notes == ()
    cut(others[1], 140)
    (note,) = read_source(tmp_path).notes
    assert note.startswith("1 DICOM file")


def test_all_slices_damaged_is_an_error_even_if_forced(paths):
    for path in paths:
        cut(path, -500)
    with pytest.raises(ScanError, match="0 slices of the series can be read"):
        read_source(paths[0].parent, force=True)
