"""Bad input of every kind: one clear sentence, an exit code that is not 0, and nothing left behind."""

from __future__ import annotations

import errno
import gzip
import re
import struct
import zipfile
import zlib
from pathlib import Path

import gdcm
import nibabel as nib
import nrrd
import numpy as np
import pytest
import SimpleITK as sitk
from made_scans import (
    AXIAL,
    GEOMETRIES,
    LPS,
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

from continual_segment.cli.main import main
from continual_segment.clinic import segment as clinic_segment
from continual_segment.files import atomic
from continual_segment.model import Model
from continual_segment.segmentation import Segmenter

AFFINE = LPS @ AXIAL.affine
XYZ = AXIAL.voxels.transpose(2, 1, 0)
FEW = AXIAL.without(*range(6, 26))
BAD = {}


def bad(name, sentence):
    """Name a kind of bad input; the function makes it in a folder and gives its path."""

    def keep(make):
        assert name not in BAD
        BAD[name] = make, sentence

    return keep


def nifti(voxels=XYZ, affine=AFFINE, name="scan.nii.gz", **fields):
    def make(folder):
        image = nib.Nifti1Image(voxels, affine)
        for field, value in fields.items():
            image.header[field] = value
        nib.save(image, folder / name)
        return folder / name

    return make


def patched(name, at, data, source=lambda folder: write_nifti(folder / "whole.nii")):
    """A sound file with some bytes overwritten."""

    def make(folder):
        content = bytearray(source(folder).read_bytes())
        content[at : at + len(data)] = data
        (folder / name).write_bytes(content)
        return folder / name

    return make


def cut(source, name, share=0.5):
    def make(folder):
        content = source(folder).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])
        return folder / name

    return make


def written(name, content):
    def make(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return make


def with_value(value):
    voxels = XYZ.astype(np.float32)
    voxels[3, 3, 3] = value
    return voxels


sheared = AFFINE.copy()
sheared[:3, 1] += 0.3 * sheared[:3, 0]
flat = AFFINE.copy()
flat[:3, 2] = flat[:3, 1]
rgb = np.zeros(XYZ.shape, [("R", "u1"), ("G", "u1"), ("B", "u1")])
unit = ((np.clip(XYZ, -160, 240) + 160) / 400).astype(np.float32)

bad("a file that is not there", "no such file or folder")(lambda folder: folder / "gone.nii.gz")
bad("an empty file", "no NIfTI file")(written("scan.nii.gz", b""))
bad("a truncated gzip file", "truncated or damaged")(
    cut(lambda f: write_nifti(f / "w.nii.gz"), "scan.nii.gz")
)
bad("a truncated NIfTI file", "damaged or cut short")(cut(lambda f: write_nifti(f / "w.nii"), "scan.nii"))
bad("text named as NIfTI", "no NIfTI file")(written("scan.nii", b"hello " * 100))
bad("a picture", "ends in none of")(written("scan.jpg", b"\xff\xd8\xff" * 50))
bad("one slice", "2 axes")(nifti(XYZ[..., 0]))
bad("a series of volumes", "4 axes")(nifti(np.stack([XYZ, XYZ], axis=-1)))
bad("a colour volume", "colours or complex")(nifti(rgb))
bad("complex numbers", "colours or complex")(nifti(XYZ.astype(np.complex64)))
bad("a NaN", "1 voxels are NaN or infinite")(nifti(with_value(np.nan)))
bad("an infinite value", "1 voxels are NaN or infinite")(nifti(with_value(np.inf)))
bad("a voxel size of zero", "voxel size in the header is")(patched("scan.nii", 312, bytes(16)))
bad("a singular affine", "affine is singular")(nifti(affine=flat))
bad("an affine of NaN", "voxel size in the header is nan")(
    patched("scan.nii", 280, struct.pack("<f", np.nan))
)
bad("slices out of square", "not at right angles")(nifti(affine=sheared))
bad("huge dimensions in the header", "damaged or cut short|no CT is so large")(
    patched("scan.nii", 42, struct.pack("<hhh", 32000, 32000, 32000))
)
bad("an axis without voxels", "damaged|axes|no voxels")(patched("scan.nii", 42, struct.pack("<h", 0)))
bad("negative dimensions", "damaged|axes|no voxels")(patched("scan.nii", 42, struct.pack("<h", -5)))
bad("an unknown number type", "damaged")(patched("scan.nii", 70, struct.pack("<h", 999)))
bad("a wrong checksum", "truncated or damaged")(
    lambda f: written("scan.nii.gz", write_nifti(f / "w.nii.gz").read_bytes()[:-8] + b"\0" * 8)(f)
)
bad("an empty scan", "Every voxel is 0")(nifti(np.zeros_like(XYZ)))
bad("an 8-bit picture", "8-bit picture")(nifti((unit * 255).astype(np.uint8)))
bad("values from 0 to 1", "too little to tell fat from muscle")(nifti(unit))
bad("values without offset", "without the scanner's offset")(nifti((XYZ + 1024).astype(np.int16)))
bad("halved values", "Air seems to be at")(nifti((XYZ // 2).astype(np.int16)))
bad("metres for millimetres", "The scan covers")(nifti(affine=AFFINE @ np.diag([0.001, 0.001, 0.001, 1])))
bad("a path with spaces and unicode", "Ärzte – Übersicht.*no NIfTI file")(
    written("Ärzte – Übersicht 1.nii.gz", b"nothing")
)

bad("a truncated NRRD file", "NRRD file is damaged")(
    cut(lambda f: write_by_itk(f / "w.nrrd"), "scan.nrrd", 0.6)
)
bad("text named as NRRD", "no NRRD file")(written("scan.nrrd", b"hello"))
bad("an NRRD header alone", "NRRD file is damaged|does not say")(
    written("scan.nrrd", b"NRRD0004\ntype: short\n\n")
)


@bad("an NRRD file without space", "does not say how the volume lies")
def _(folder):
    nrrd.write(str(folder / "scan.nrrd"), XYZ)
    return folder / "scan.nrrd"


@bad("a colour NRRD file", "4 axes")
def _(folder):
    image = sitk.GetImageFromArray(np.zeros((5, 6, 7, 3), np.uint8), isVector=True)
    sitk.WriteImage(image, str(folder / "scan.nrrd"))
    return folder / "scan.nrrd"


@bad("an NRRD header without its data", "NRRD file is damaged")
def _(folder):
    write_by_itk(folder / "scan.nhdr")
    next(path for path in folder.iterdir() if path.suffix != ".nhdr").unlink()
    return folder / "scan.nhdr"


def mha(name="scan.mha", **changes):
    def make(folder):
        lines = {
            "ObjectType": "Image", "NDims": "3", "BinaryData": "True", "CompressedData": "False",
            "TransformMatrix": "1 0 0 0 1 0 0 0 1", "Offset": "0 0 0", "ElementSpacing": "2 2 2",
            "DimSize": "50 46 26", "ElementType": "MET_SHORT",
        }  # fmt: skip
        last = {"ElementDataFile": changes.pop("ElementDataFile", "LOCAL")}  # which ends the header
        data = changes.pop("data", AXIAL.voxels.tobytes())
        text = "".join(
            f"{key} = {value}\n" for key, value in (lines | changes | last).items() if value is not None
        )
        (folder / name).write_bytes(text.encode() + data)
        return folder / name

    return make


bad("a truncated MetaImage file", "cut short: 100 bytes of voxels")(mha(data=b"\0" * 100))
bad("text named as MetaImage", "no MetaImage file")(written("scan.mha", b"hello world, no equals\n"))
bad("a MetaImage of three channels", "with 3 channels")(mha(ElementNumberOfChannels=3))
bad("a MetaImage without its data", "there is no such file")(mha("scan.mhd", ElementDataFile="gone.raw"))
bad("a MetaImage of many files", "one file beside the header")(mha("scan.mhd", ElementDataFile="LIST"))
bad("a MetaImage that points elsewhere", "one file beside the header")(mha(ElementDataFile="/etc/passwd"))
bad("a MetaImage with voxels of no size", "voxel size in the header")(mha(ElementSpacing="2 0 2"))
bad("a MetaImage with garbled numbers", "lacks or garbles")(mha(DimSize="fifty 46 26"))
bad("a MetaImage without dimensions", "lacks or garbles")(mha(DimSize=None))
bad("a MetaImage with damaged compression", "compressed voxels are damaged")(
    mha(CompressedData="True", data=b"no zlib at all")
)
bad("a huge MetaImage", "no CT is so large")(mha(DimSize="99999 99999 99999"))
bad("a MetaImage that unpacks to too little", "cut short")(
    mha(CompressedData="True", data=zlib.compress(b"\0" * 500))
)


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


def make_folder(folder, name, files=()):
    (folder / name).mkdir()
    for file, content in files:
        (folder / name / file).write_bytes(content)
    return folder / name


bad("an empty folder", "no scan in this folder")(lambda f: make_folder(f, "empty"))
bad("a folder without scans", "no scan in this folder")(
    lambda f: make_folder(f, "x", [("a.txt", b"a"), ("b", b"b")])
)
bad("garbage named as DICOM", "do not say where they lie|no scan")(
    lambda f: make_folder(f, "x", [(f"{i}.dcm", bytes(range(256))) for i in range(4)])
)
bad("an MR series", "The images are MR; CT")(series(AXIAL, modality="MR"))
bad("a PET series", "The images are PT; CT")(series(AXIAL, modality="PT"))
bad("a map of electron density", "CT in ED")(series(AXIAL, RescaleType="ED"))
bad("two CT series", r"2 series could be meant")(
    lambda f: (series(FEW)(f), write_series(f / "series", FEW, "b", SeriesInstanceUID="1.2.3"))[0]
)
bad("different slices in one place", "lie in the same place")(
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
bad("slices without pixels", "pixels cannot be decoded")(
    series(then=change_files(lambda d: d.__delitem__("PixelData")))
)
bad("slices that do not say where they lie", "do not say where they lie")(
    series(then=change_files(lambda d: d.__delitem__("ImagePositionPatient")))
)
bad("pixels of no size", "do not say where they lie")(
    series(then=change_files(lambda d: setattr(d, "PixelSpacing", [0, 0])))
)
bad("rows along columns", "do not say where they lie")(
    series(then=change_files(lambda d: setattr(d, "ImageOrientationPatient", [1, 0, 0, 1, 0, 0])))
)
bad("more rows than pixels", "pixels cannot be decoded")(
    series(then=change_files(lambda d: setattr(d, "Rows", 999)))
)
bad("slices of monstrous size", "no CT slice is so large")(
    series(then=change_files(lambda d: (setattr(d, "Rows", 60000), setattr(d, "Columns", 60000))))
)


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


@bad("a report alone", "the others are none")
def _(folder):
    save(folder / "x" / "report.dcm", header(modality="SR"))
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


@pytest.fixture(scope="module")
def one_segmenter(shared_model_folder):
    return Segmenter(Model.open(shared_model_folder))


@pytest.fixture
def conseg(one_segmenter, shared_model_folder, monkeypatch, capsys):
    """Run the command with a model that is loaded once; give exit code and what was said."""
    monkeypatch.setattr(clinic_segment, "Segmenter", lambda *_, **__: one_segmenter)

    def run(source, out, *options):
        code = main(["segment", str(source), "-m", str(shared_model_folder), "-o", str(out), *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_there_are_more_than_forty_kinds():
    assert len(BAD) > 40


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence_and_leaves_nothing(name, conseg, tmp_path):
    make, sentence = BAD[name]
    (tmp_path / "in").mkdir()
    code, said = conseg(make(tmp_path / "in"), tmp_path / "out")
    assert code in (1, 2)
    assert re.search(sentence, said, re.DOTALL), said
    assert "Traceback" not in said
    assert "unexpected" not in said
    assert len(re.findall(sentence, said)) <= 1  # said once
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_told_and_leaves_nothing(conseg, tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(atomic, "_force_to_disk", full)
    code, said = conseg(write_nifti(tmp_path / "a.nii"), tmp_path / "out")
    assert code == 1
    assert "No space left on device" in said
    assert not (tmp_path / "out").exists()


def test_a_file_without_rights_is_told(conseg, tmp_path, monkeypatch):
    path = write_nifti(tmp_path / "a.nii")
    opened = Path.open

    def refuse(self, *arguments, **options):
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", lambda self: self.open("rb").read())
    code, said = conseg(path, tmp_path / "out")
    assert code in (1, 2)
    assert "cannot be read (Permission denied)" in said or "Permission denied" in said


@pytest.mark.parametrize("out", ["file/out", "/proc/nowhere/out"])
def test_an_output_that_cannot_be_made_is_told(out, conseg, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, said = conseg(write_nifti(tmp_path / "a.nii"), tmp_path / out)
    assert code in (1, 2)
    assert "out" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nii", "file"]


def test_force_segments_what_does_not_look_like_a_ct(conseg, tmp_path):
    gzip_path = nifti((XYZ + 1024).astype(np.int16))(tmp_path)
    assert gzip.decompress(gzip_path.read_bytes())
    code, said = conseg(gzip_path, tmp_path / "out", "--force")
    assert (code, (tmp_path / "out" / "scan.nii.gz").is_file()) == (0, True), said
