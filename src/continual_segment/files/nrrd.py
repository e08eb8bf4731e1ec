"""NRRD in: one volume of numbers, its place in the patient from `space` and its directions.

In:  .nrrd, or .nhdr with its data beside it
Out: Volume or LabelMap
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import nrrd
import numpy as np

from continual_segment.errors import ScanError
from continual_segment.files.grids import (
    LPS_TO_RAS,
    check_affine,
    check_shape,
    check_size,
    labels_of,
    read_bytes,
    scan_of,
)
from continual_segment.volume import LabelMap, Volume

SPACES = {
    "left-posterior-superior": LPS_TO_RAS,
    "lps": LPS_TO_RAS,
    "right-anterior-superior": np.eye(4),
    "ras": np.eye(4),
    "left-anterior-superior": np.diag([-1.0, 1.0, 1.0, 1.0]),
    "las": np.diag([-1.0, 1.0, 1.0, 1.0]),
}
"""Name of the space -> what turns its millimetres into ours."""
BROKEN = (
    nrrd.NRRDError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    OSError,
    OverflowError,
    zlib.error,
    EOFError,
)
"""What pynrrd raises on damaged files, besides an AttributeError for odd fields."""


def read_scan(path: Path) -> Volume:
    voxels, affine, _ = _load(path)
    return scan_of(path, voxels, affine)


def read_labels(path: Path) -> LabelMap:
    voxels, affine, header = _load(path)
    return labels_of(path, voxels, affine, segment_names(header))


def segment_names(header: dict[str, Any]) -> dict[int, str]:
    """Organ names as 3D Slicer writes them into a .seg.nrrd."""
    numbers = (key.removesuffix("_LabelValue") for key in header if key.endswith("_LabelValue"))
    return {
        int(header[f"{number}_LabelValue"]): str(header[f"{number}_Name"])
        for number in numbers
        if f"{number}_Name" in header and str(header[f"{number}_LabelValue"]).isdecimal()
    }


def _load(path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Voxels (x, y, z), affine to our millimetres, header."""
    if read_bytes(path)[:4] != b"NRRD":
        raise ScanError(f"{path}: this is no NRRD file, whatever its name says. Export the scan again.")
    try:
        header = dict(nrrd.read_header(str(path)))
        _check_header(path, header)
        affine = _affine(path, header)
        voxels, _ = nrrd.read(str(path), index_order="F")
    except (*BROKEN, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ScanError(
            f"{path}: the NRRD file is damaged or cut short ({reason}). Copy or export it again."
        ) from error
    return voxels.reshape(voxels.shape[:3]), affine, header


def _check_header(path: Path, header: dict[str, Any]) -> None:
    shape = tuple(int(length) for length in header["sizes"])
    check_shape(path, shape)
    kinds = header.get("kinds") or []
    if str(header["type"]) == "block" or any("color" in str(kind).lower() for kind in kinds):
        raise ScanError(f"{path}: voxels are colours or blocks; plain numbers were expected. Export as CT.")
    check_size(path, shape, 8)


def _affine(path: Path, header: dict[str, Any]) -> np.ndarray:
    space = str(header.get("space", "")).lower()
    if space not in SPACES or "space directions" not in header:
        raise ScanError(
            f"{path}: the header does not say how the volume lies in the patient (space {space!r}); one of "
            f"{', '.join(name for name in SPACES if '-' in name)} with directions was expected. "
            "Export the scan again from the program that knows."
        )
    directions = np.asarray(header["space directions"], float)[:3]
    affine = np.eye(4)
    affine[:3, :3] = directions.T
    affine[:3, 3] = np.asarray(header.get("space origin", np.zeros(3)), float)
    check_affine(path, affine)
    return SPACES[space] @ affine
