"""Which files are DICOM: media with a DICOMDIR, files without a preamble, and what only looks like either."""

from __future__ import annotations

import io
import os
import struct
import wave

import numpy as np
import pytest
from made_scans import AXIAL, read_header, write_series, write_zip
from pydicom import Dataset, dcmwrite
from pydicom.fileset import FileSet

from continual_segment.clinic.jobs import list_jobs
from continual_segment.errors import ScanError
from continual_segment.files import read_scan, read_source
from continual_segment.files.dicom.find import dicom_files, is_dicom, starts_as_data_set

FEW = AXIAL.without(*range(6, 26))
ENCODINGS = {"implicit": (True, True), "explicit": (False, True), "big-endian": (False, False)}


def write_medium(folder, *series):
    """Files of a standard medium and its DICOMDIR."""
    medium = FileSet()
    for path in (path for paths in series for path in paths):
        medium.add(path)
    medium.write(folder)
    return folder


@pytest.fixture
def medium(tmp_path):
    return write_medium(tmp_path / "disc", write_series(tmp_path / "made", FEW))


def test_a_medium_is_one_scan_given_as_folder_or_as_dicomdir(medium, tmp_path):
    for source in (medium, medium / "DICOMDIR"):
        (job,) = list_jobs(source, tmp_path / "out")
        assert (job.case, job.source) == ("disc", medium)
        assert read_source(source).volume.voxels.shape == FEW.voxels.shape


def test_a_list_may_name_a_dicomdir(medium, tmp_path):
    (tmp_path / "list.txt").write_text("disc/DICOMDIR\n")
    (job,) = list_jobs(tmp_path / "list.txt", tmp_path / "out")
    assert (job.case, job.source) == ("disc", medium)


def test_a_dicomdir_of_another_name_and_a_damaged_one_are_not_read_as_slices(medium):
    directory = medium / "DICOMDIR"
    directory.write_bytes(directory.read_bytes()[:300])
    assert read_source(directory).notes == ()
    other = write_medium(medium.parent / "other", write_series(medium.parent / "again", FEW))
    (other / "DICOMDIR").rename(other / "index.dcm")
    assert read_source(other / "index.dcm").notes == ()


def test_nothing_outside_the_folder_of_a_dicomdir_is_read(medium, tmp_path):
    """Wherever the records of the directory point: files are looked for in its folder alone."""
    directory = medium / "DICOMDIR"
    content = directory.read_bytes()
    name = next(path for path in medium.rglob("*") if path.is_file() and path != directory).name.encode()
    assert name in content
    directory.write_bytes(content.replace(name, (b"../" * len(name))[: len(name)]))
    assert {medium} == {tmp_path / "disc"} == set(map(top_of(medium), dicom_files(directory)))


def top_of(folder):
    return lambda file: folder if file.name.startswith(f"{folder}{os.sep}") else file.name


def test_a_medium_with_two_patients_is_a_batch_or_says_so(tmp_path):
    first = write_series(tmp_path / "a", FEW)
    second = write_series(
        tmp_path / "b", FEW, StudyInstanceUID="1.2.3", PatientID="other", SeriesInstanceUID="1.4"
    )
    medium = write_medium(tmp_path / "disc", first, second)
    jobs = list_jobs(medium / "DICOMDIR", tmp_path / "out")
    assert len(jobs) == 2
    assert all(job.source.parent == medium for job in jobs)


def write_plain(folder, pattern, encoding):
    """A series without preamble, mark and file meta information, named by a pattern."""
    folder.mkdir()
    implicit, little_endian = ENCODINGS[encoding]
    for index, path in enumerate(write_series(folder.parent / "made", FEW)):
        data = Dataset()
        data.update(read_header(path))
        if not little_endian:
            data.PixelData = np.frombuffer(data.PixelData, "<i2").byteswap().tobytes()
            data["PixelData"].VR = "OW"
        dcmwrite(folder / pattern.format(index), data, implicit_vr=implicit, little_endian=little_endian)
    return folder


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("pattern", ["IM{:04}", "{}.img", "slice.{}", "{}.dcm"])
def test_files_without_a_preamble_are_read(pattern, encoding, tmp_path):
    folder = write_plain(tmp_path / "plain", pattern, encoding)
    (job,) = list_jobs(folder, tmp_path / "out")
    np.testing.assert_array_equal(read_scan(job.source).voxels, read_scan(tmp_path / "made").voxels)
    zipped = write_zip(tmp_path / "a.zip", sorted(folder.iterdir()))
    np.testing.assert_array_equal(read_scan(zipped).voxels, read_scan(tmp_path / "made").voxels)


def test_a_damaged_file_without_a_preamble_is_an_error(tmp_path):
    folder = write_plain(tmp_path / "plain", "IM{:04}", "implicit")
    (folder / "IM0000").write_bytes((folder / "IM0000").read_bytes()[:30])
    with pytest.raises(ScanError, match=r"1 file .*IM0000"):
        read_source(folder)


def a_wave_file():
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(4000))
    return file.getvalue()


OTHERS = {
    "zeros": bytes(4000),
    "ones": b"\xff" * 4000,
    "text": b"The CT of the abdomen\n" * 100,
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4,
    "a sound": a_wave_file(),
    "an executable": b"MZ\x90\0\3\0\0\0\4\0\0\0\xff\xff\0\0" + bytes(500),
    "small numbers": np.arange(2000, dtype="<u2").tobytes(),
    "eights": np.full(2000, 8, "<u2").tobytes(),
    "one element": struct.pack("<HHI", 8, 0x16, 4) + b"1.2\0" + bytes(500),
    "tags that do not ascend": (struct.pack("<HHI", 8, 0x16, 4) + b"1.2\0") * 40,
    "nothing": b"",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_not_taken_for_dicom(kind, tmp_path):
    (tmp_path / "file").write_bytes(OTHERS[kind])
    assert not is_dicom(tmp_path / "file")
    assert dicom_files(tmp_path) == []


def test_random_bytes_are_not_taken_for_dicom():
    chance = np.random.default_rng(0)
    start = struct.pack("<HH", 8, 5)  # as files do
    assert not any(starts_as_data_set(start + chance.bytes(508)) for _ in range(3000))
