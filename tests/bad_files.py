"""Bad NIfTI, NRRD and MetaImage files."""

from __future__ import annotations

import struct
import zlib

import nibabel as nib
import nrrd
import numpy as np
import SimpleITK as sitk
from bad_inputs import bad, cut, patched, written
from made_scans import AXIAL, LPS, write_by_itk, write_nifti

AFFINE = LPS @ AXIAL.affine
XYZ = AXIAL.voxels.transpose(2, 1, 0)


def nifti(voxels=XYZ, affine=AFFINE, name="scan.nii.gz", **fields):
    def make(folder):
        image = nib.Nifti1Image(voxels, affine)
        for field, value in fields.items():
            image.header[field] = value
        nib.save(image, folder / name)
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
bad("values from 0 to 1", "too little to separate fat from muscle")(nifti(unit))
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
bad("an NRRD header alone", "NRRD file is damaged|position in the patient")(
    written("scan.nrrd", b"NRRD0004\ntype: short\n\n")
)


@bad("an NRRD file without space", "position in the patient")
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


bad("a MetaImage of text", "stored as text")(mha(BinaryData="False", data=b"1 2 3 " * 9999))
bad("a MetaImage with a garbled start", "HeaderSize of many")(mha(HeaderSize="many"))
bad("a MetaImage with a name that a terminal obeys", r"voxels are MET_.\[2J with")(
    mha(ElementType="MET_\x1b[2J")
)
bad("an NRRD file that points elsewhere", "one file beside the header")(
    written("scan.nhdr", b"NRRD0004\ntype: short\ndimension: 3\nsizes: 5 6 7\ndata file: /etc/passwd\n\n")
)
for fields in (
    "data file: voxels.raw\ndatafile: /etc/passwd",
    "datafile: voxels.raw\ndata file: /etc/passwd",
    "datafile: voxels.raw\ndata file: voxels.raw",
    "datafile: ../../secret.raw",
):
    bad(f"an NRRD file with the voxels in {fields.splitlines()}", "one file beside the header")(
        written("scan.nhdr", f"NRRD0004\ntype: short\ndimension: 3\nsizes: 5 6 7\n{fields}\n\n".encode())
    )
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
