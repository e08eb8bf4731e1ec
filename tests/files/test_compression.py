"""Compressed slices: the same voxels, nearly the same with a word, or a sentence why they are not read."""

from __future__ import annotations

import io

import gdcm
import numpy as np
import pytest
from made_scans import AXIAL, compress, read_header, write_enhanced, write_series, write_zip
from PIL import Image
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000, UID, JPEGBaseline8Bit, JPEGLSNearLossless

from continual_segment.errors import ScanError
from continual_segment.files import read_scan, read_source

FEW = AXIAL.without(*range(8), *range(14, 26))
PLAIN = "1.2.840.10008.1.2.1"
LOSSLESS = [
    "ImplicitVRLittleEndian",
    "ExplicitVRBigEndian",
    "DeflatedExplicitVRLittleEndian",
    "RLELossless",
    "JPEGLosslessProcess14",
    "JPEGLosslessProcess14_1",
    "JPEGLSLossless",
    "JPEG2000Lossless",
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    write_series(folder, FEW)
    return read_scan(folder).voxels.astype(int)


def stored_in(bits, path, slope=1):
    """A slice whose stored values are not negative and fit into so many bits."""
    data = read_header(path)
    values = np.frombuffer(data.PixelData, np.int16).astype(int).reshape(data.Rows, data.Columns)
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = (
        8 * -(-bits // 8),
        bits,
        bits - 1,
        0,
    )
    data.RescaleSlope, data.RescaleIntercept = slope, -1024
    pixels = np.rint((values + 1024) / slope).clip(0, 2**bits - 1)
    return data, pixels.astype(np.uint8 if bits == 8 else np.uint16)


def keep(path, data, packed, syntax):
    """Write a slice with pixels that somebody else has packed."""
    data.PixelData = encapsulate([packed])
    data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True
    data.file_meta.TransferSyntaxUID = syntax
    data.save_as(path)


def packed_by_pillow(pixels, kind, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("syntax", LOSSLESS)
def test_slices_compressed_without_loss_give_the_same_voxels(syntax, plain, tmp_path):
    for path in write_series(tmp_path / "packed", FEW):
        compress(path, getattr(gdcm.TransferSyntax, syntax))
    assert read_header(path).file_meta.TransferSyntaxUID != PLAIN
    source = read_source(tmp_path / "packed")
    np.testing.assert_array_equal(source.volume.voxels, plain)
    assert not any("loss" in note for note in source.notes)


@pytest.mark.parametrize("syntax", ["RLELossless", "JPEGLSLossless", "JPEG2000Lossless"])
def test_frames_of_one_file_and_slices_in_a_zip_may_be_compressed_too(syntax, plain, tmp_path):
    enhanced, files = write_enhanced(tmp_path / "a.dcm", FEW), write_series(tmp_path / "series", FEW)
    for path in (enhanced, *files):
        compress(path, getattr(gdcm.TransferSyntax, syntax))
    for path in (enhanced, write_zip(tmp_path / "a.zip", files)):
        np.testing.assert_array_equal(read_scan(path).voxels, plain)


def by_extended_jpeg(path):
    """Lossy JPEG of 12 bits, which archives of CT hold."""
    data, pixels = stored_in(12, path)
    data.PixelData = pixels.tobytes()
    data.save_as(path)
    compress(path, gdcm.TransferSyntax.JPEGExtendedProcess2_4)


def by_baseline_jpeg(path):
    data, pixels = stored_in(8, path, slope=8)
    keep(path, data, packed_by_pillow(pixels, "JPEG", quality=95), JPEGBaseline8Bit)


def by_jpeg_2000(path):
    data, pixels = stored_in(12, path)
    data.BitsStored, data.HighBit, data.LossyImageCompression = 16, 15, "01"
    options = {"irreversible": True, "quality_mode": "dB", "quality_layers": [85], "no_jp2": True}
    keep(path, data, packed_by_pillow(pixels, "JPEG2000", **options), JPEG2000)


def by_jpeg_ls(path):
    data, pixels = stored_in(12, path)
    data.PixelData = pixels.tobytes()
    data.compress(JPEGLSNearLossless, jls_error=4)
    data.LossyImageCompression = "01"
    data.save_as(path)


@pytest.mark.parametrize("pack", [by_extended_jpeg, by_baseline_jpeg, by_jpeg_2000, by_jpeg_ls])
def test_slices_compressed_with_loss_are_read_with_a_word(pack, plain, tmp_path):
    for path in write_series(tmp_path, FEW):
        pack(path)
    source = read_source(tmp_path)
    away = np.abs(source.volume.voxels - plain)
    assert 0 < away.mean() < 10  # Hounsfield units
    assert away.max() < 150
    assert source.notes[0].startswith("The slices were compressed with loss")


@pytest.mark.parametrize(
    ("syntax", "name"),
    [
        ("1.2.840.10008.1.2.4.201", "High-Throughput JPEG 2000"),
        ("1.2.840.10008.1.2.4.55", "JPEG Full Progression"),
        ("1.2.840.10008.1.2.4.92", "JPEG 2000 Part 2"),
        ("1.2.840.10008.1.2.4.100", "MPEG2"),
    ],
)
def test_other_compression_is_refused_by_name(syntax, name, tmp_path):
    for path in write_series(tmp_path, FEW):
        keep(path, read_header(path), b"whatever", UID(syntax))
    with pytest.raises(ScanError, match=rf"{name}.*Export"):
        read_source(tmp_path)
