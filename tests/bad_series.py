"""Bad DICOM series, zips, folders and lists."""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace

import gdcm
from bad_inputs import bad, cut, make_folder, patched, written
from made_scans import (
    AXIAL,
    GEOMETRIES,
    compress,
    header,
    read_header,
    save,
    write_by_itk,
    write_enhanced,
    write_nifti,
    write_series,
    write_zip,
)
from pydicom.encaps import encapsulate
from pydicom.uid import ComprehensiveSRStorage, HTJ2KLossless

FEW = AXIAL.without(*range(6, 26))


def series(made=FEW, then=None, **values):
    def make(folder):
        paths = write_series(folder / "series", made, **values)
        if then:
            then(paths)
        return folder / "series"

    return make


def change_files(change, which=slice(None)):
    def then(paths):
        for path in paths[which]:
            data = read_header(path)
            change(data)
            data.save_as(path)

    return then


def truncate(paths):
    paths[2].write_bytes(paths[2].read_bytes()[:-500])


def truncate_ends(paths):
    for path in (*paths[:4], *paths[-4:]):
        path.write_bytes(path.read_bytes()[:140])


bad("an empty folder", "no scan in this folder")(lambda f: make_folder(f, "empty"))
bad("a folder without scans", "no scan in this folder")(
    lambda f: make_folder(f, "x", [("a.txt", b"a"), ("b", b"b")])
)
bad("garbage named as DICOM", "without a position|no scan")(
    lambda f: make_folder(f, "x", [(f"{i}.dcm", bytes(range(256))) for i in range(4)])
)
bad("an MR series", "The images are MR; CT")(series(AXIAL, modality="MR"))
bad("an MR series with gaps", "The images are MR; CT")(series(AXIAL.without(*range(8, 18)), modality="MR"))
bad("several MR series", "The images are MR; CT")(
    lambda f: (
        series(FEW, modality="MR")(f),
        write_series(f / "series", FEW, "b", modality="MR", SeriesInstanceUID="1.2.3"),
    )[0]
)
bad("a PET series", "The images are PT; CT")(series(AXIAL, modality="PT"))
bad("a map of electron density", "CT in ED")(series(AXIAL, RescaleType="ED"))
bad("two CT series", r"2 series could be meant")(
    lambda f: (series(FEW)(f), write_series(f / "series", FEW, "b", SeriesInstanceUID="1.2.3"))[0]
)
bad("different slices in one place", "have the position of another one")(
    lambda f: (
        series(FEW)(f),
        change_files(lambda d: setattr(d, "PixelData", bytes(len(d.PixelData))))(
            write_series(f / "series", FEW, "b")
        ),
    )[0]
)
bad("two slices", "at least 3 parallel slices")(series(AXIAL.without(*range(2, 26))))
bad("missing slices", "10 slices are missing between")(series(AXIAL.without(*range(8, 18))))
bad("a scout alone", "a localiser")(
    series(GEOMETRIES["coronal"].without(*range(3, 26)), ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
)
bad("a slice cut short", "pixels cannot be decoded")(series(then=truncate))
bad("damaged slices at both ends", "8 files of the series cannot be read: slice_000")(
    series(AXIAL, then=truncate_ends)
)
bad("slices without pixels", "pixels cannot be decoded")(
    series(then=change_files(lambda d: d.__delitem__("PixelData")))
)
bad("slices without a position", "without a position")(
    series(then=change_files(lambda d: d.__delitem__("ImagePositionPatient")))
)
bad("pixels of no size", "without a position")(
    series(then=change_files(lambda d: setattr(d, "PixelSpacing", [0, 0])))
)
bad("rows along columns", "without a position")(
    series(then=change_files(lambda d: setattr(d, "ImageOrientationPatient", [1, 0, 0, 1, 0, 0])))
)
bad("more rows than pixels", "pixels cannot be decoded")(
    series(then=change_files(lambda d: setattr(d, "Rows", 999)))
)
bad("slices of monstrous size", "no CT slice is so large")(
    series(then=change_files(lambda d: (setattr(d, "Rows", 60000), setattr(d, "Columns", 60000))))
)


bad("one slice far beside the others", "no tilt of a gantry")(
    series(then=change_files(lambda d: d.ImagePositionPatient.__setitem__(0, 50_000), slice(3, 4)))
)
bad("units that a terminal obeys", r"The images are CT in .\]0;x.;")(
    series(then=change_files(lambda d: setattr(d, "RescaleType", "\x1b]0;x\x07")))
)


@bad("one slice three times", "1 slices of the series can be read")
def _(folder):
    (path, *others) = write_series(folder / "series", FEW)
    for number, other in enumerate(others):
        other.unlink()
        if number < 2:
            data = read_header(path)
            data.SOPInstanceUID = f"1.2.{number + 1}"
            data.save_as(folder / "series" / f"again_{number}.dcm")
    return folder / "series"


@bad("compression that is not read", "compressed as High-Throughput JPEG 2000")
def _(folder):
    for path in write_series(folder / "series", FEW):
        data = read_header(path)
        data.PixelData = encapsulate([b"whatever"])
        data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True
        data.file_meta.TransferSyntaxUID = HTJ2KLossless
        data.save_as(path)
    return folder / "series"


@bad("two patients side by side", "several studies")
def _(folder):
    write_series(folder / "scans", FEW)
    write_series(folder / "scans" / "other", FEW, StudyInstanceUID="1.2.3")
    return folder / "scans"


@bad("slices of two sizes, few of each", "at least 3 parallel slices")
def _(folder):
    write_series(folder / "series", AXIAL.without(*range(2, 26)))
    write_series(folder / "series", replace(AXIAL, shape=(26, 40, 40), keep=(5, 6)), "b")
    return folder / "series"


@bad("a colour series", "colour image")
def _(folder):
    for path in write_series(folder / "series", FEW):
        data = read_header(path)
        data.SamplesPerPixel, data.PhotometricInterpretation, data.PlanarConfiguration = 3, "RGB", 0
        data.BitsAllocated = data.BitsStored = 8
        data.HighBit, data.PixelRepresentation = 7, 0
        data.PixelData = bytes(data.Rows * data.Columns * 3)
        data.save_as(path)
    return folder / "series"


@bad("a report alone", "1 are no images")
def _(folder):
    save(folder / "x" / "report.dcm", header(modality="SR", SOPClassUID=ComprehensiveSRStorage))
    return folder / "x"


@bad("damaged compression", "pixels cannot be decoded")
def _(folder):
    for path in write_series(folder / "series", FEW):
        compress(path, gdcm.TransferSyntax.JPEGLSLossless)
        content = path.read_bytes()
        at = content.index(b"\xff\xd8\xff")
        path.write_bytes(content[: at + 2] + b"\0" * 40 + content[at + 42 :])
    return folder / "series"


bad("a truncated multi-frame file", "pixels cannot be decoded")(
    cut(lambda f: write_enhanced(f / "whole" / "w.dcm"), "scan.dcm", 0.8)
)
bad("a damaged zip", "zip is damaged|no DICOM file|ends in none")(
    lambda f: cut(lambda g: write_zip(g / "w.zip", write_series(g / "s", FEW)), "scan.zip")(f)
)
bad("a zip with a damaged member", "zip is damaged")(
    lambda f: patched(
        "scan.zip", 3000, b"x" * 50, lambda g: write_zip(g / "w.zip", write_series(g / "s", FEW))
    )(f)
)


@bad("a zip without DICOM", "no DICOM file was found")
def _(folder):
    with zipfile.ZipFile(folder / "scan.zip", "w") as archive:
        archive.writestr("a.txt", "hello")
    return folder / "scan.zip"


@bad("an encrypted zip", "zip is encrypted")
def _(folder):
    path = write_zip(folder / "scan.zip", write_series(folder / "s", FEW))
    content = bytearray(path.read_bytes())
    for start, flag in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag in both kinds of entry
        for match in re.finditer(re.escape(start), bytes(content)):
            content[match.start() + flag] |= 1
    path.write_bytes(content)
    return path


bad("an empty list", "list of scans is empty")(written("list.txt", b"# nothing\n\n"))
bad("a list that is no text", "list of scans cannot be read")(written("list.txt", b"\xff\xfe\x00\x81" * 9))
bad("a list that names what is not there", "there is no such file")(written("list.txt", b"gone.nii.gz\n"))


@bad("two scans of one name", "would both be written to")
def _(folder):
    (folder / "scans").mkdir()
    write_nifti(folder / "scans" / "a.nii")
    write_by_itk(folder / "scans" / "a.mha")
    return folder / "scans"
