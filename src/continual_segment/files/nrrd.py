"""NRRD in, and segmentations for 3D Slicer out.

In:  .nrrd, or .nhdr with its data beside it; one volume whose `space` defines its position in the patient
Out: Volume or LabelMap; label maps as .seg.nrrd
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import nrrd
import numpy as np

from continual_segment.errors import ScanError
from continual_segment.files.atomic import atomic_path
from continual_segment.files.grids import (
    LPS_TO_RAS,
    by,
    check_affine,
    check_shape,
    check_size,
    from_canonical,
    labels_of,
    read_bytes,
    scan_of,
)
from continual_segment.files.label_table import is_label
from continual_segment.files.organ_colours import label_colour
from continual_segment.files.terms import terms_of
from continual_segment.names import printable
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
DATA_FILE = ("data file", "datafile")
"""Fields that name the file with the voxels."""
SKIPS = ("line skip", "lineskip", "byte skip", "byteskip")
"""Fields that say how much there is before the voxels."""
UNPACKERS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": gzip.open,
    "gz": gzip.open,
    "bzip2": bz2.open,
    "bz2": bz2.open,
}
"""Files that unpack what they read, by encoding."""
BYTES_PER_VOXEL = 8
"""At most."""
PIECE_BYTES = 2**22
COMPRESSION_LEVEL = 3  # as for NIfTI
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
        if f"{number}_Name" in header and is_label(str(header[f"{number}_LabelValue"]))
    }


def _load(path: Path) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Voxels (x, y, z), affine to our millimetres, header."""
    if read_bytes(path, 4) != b"NRRD":
        raise ScanError(f"{path}: this is no NRRD file in spite of its name. Export the scan again.")
    try:
        with path.open("rb") as file:
            header = dict(nrrd.read_header(file))
            _check_header(path, header)
            affine = _affine(path, header)
            _check_unpacked(path, header, file)
            voxels = nrrd.read_data(header, file, str(path), index_order="F")
    except (*BROKEN, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ScanError(
            f"{path}: the NRRD file is damaged or cut short ({reason}). Copy or export it again."
        ) from error
    return voxels.reshape(voxels.shape[:3]), affine, header


def _check_header(path: Path, header: dict[str, Any]) -> None:
    places = [str(header[field]) for field in DATA_FILE if field in header]  # readers differ in which counts
    if len(places) > 1 or any(Path(place).name != place for place in places):
        raise ScanError(
            f"{path}: the voxels are in {printable(' and '.join(places))}; one file beside the header was "
            "expected. Save as .nrrd."
        )
    shape = tuple(int(length) for length in header["sizes"])
    check_shape(path, shape)
    kinds = header.get("kinds") or []
    if str(header["type"]) == "block" or any("color" in str(kind).lower() for kind in kinds):
        raise ScanError(f"{path}: voxels are colours or blocks; plain numbers were expected. Export as CT.")
    check_size(path, shape, BYTES_PER_VOXEL)


def _check_unpacked(path: Path, header: dict[str, Any], file: BinaryIO) -> None:
    """Raise where compressed voxels unpack to more than the header speaks of: pynrrd unpacks all there is.

    The file is behind its header, and is left there.
    """
    if (encoding := str(header["encoding"])) not in UNPACKERS:
        return
    if any(int(header.get(field, 0)) > 0 for field in SKIPS):
        raise ScanError(f"{path}: compressed voxels follow skipped lines or bytes. Save the scan without.")
    apart = next((str(header[field]) for field in DATA_FILE if field in header), None)
    most = BYTES_PER_VOXEL * prod(int(length) for length in header["sizes"])
    if apart is None:
        start = file.tell()
        size = _unpacked_size(file, encoding, most)
        file.seek(start)
    else:
        with (path.parent / apart).open("rb") as data:
            size = _unpacked_size(data, encoding, most)
    if size > most:
        raise ScanError(
            f"{path}: the compressed voxels unpack to more than the {by(header['sizes'])} voxels of the "
            "header. The file is damaged: copy or export it again."
        )


def _unpacked_size(file: BinaryIO, encoding: str, most: int) -> int:
    """Bytes that compressed data unpacks to; counting ends above `most`."""
    size, unpacked = 0, UNPACKERS[encoding](file)
    while size <= most and (piece := unpacked.read(PIECE_BYTES)):
        size += len(piece)
    return size


def _affine(path: Path, header: dict[str, Any]) -> np.ndarray:
    space = str(header.get("space", "")).lower()
    if space not in SPACES or "space directions" not in header:
        raise ScanError(
            f"{path}: the header has no position in the patient (space {space!r}); one of "
            f"{', '.join(name for name in SPACES if '-' in name)} with directions was expected. "
            "Export the scan again from the program that it came from."
        )
    directions = np.asarray(header["space directions"], float)[:3]
    affine = np.eye(4)
    affine[:3, :3] = directions.T
    affine[:3, 3] = np.asarray(header.get("space origin", np.zeros(3)), float)
    check_affine(path, affine)
    return SPACES[space] @ affine


def write_segments(path: Path, layers: Sequence[LabelMap]) -> None:
    """A .seg.nrrd for 3D Slicer: names, colours, terminology; organs that share voxels on several layers."""
    voxels = [from_canonical(layer.voxels, layer.grid)[0] for layer in layers]
    _, affine = from_canonical(layers[0].voxels, layers[0].grid)
    affine = LPS_TO_RAS @ affine
    many = len(voxels) > 1
    header: dict[str, Any] = {
        "space": "left-posterior-superior",
        "space directions": np.vstack([np.full((1, 3), np.nan)] * many + [affine[:3, :3].T]),
        "space origin": affine[:3, 3],
        "kinds": ["list"] * many + ["domain"] * 3,
        "encoding": "gzip",
        "Segmentation_MasterRepresentation": "Binary labelmap",
        "Segmentation_ContainedRepresentationNames": "Binary labelmap|",
        "Segmentation_ReferenceImageExtentOffset": "0 0 0",
    }
    extent = " ".join(f"0 {length - 1}" for length in voxels[0].shape)
    organs = [(number, *item) for number, layer in enumerate(layers) for item in sorted(layer.names.items())]
    for index, (layer_number, label, name) in enumerate(organs):
        header |= _segment_fields(f"Segment{index}", layer_number, label, name, extent)
    largest = max(int(each.max(initial=0)) for each in voxels)
    data = np.stack(voxels) if many else voxels[0]
    with atomic_path(path) as unfinished:
        nrrd.write(
            str(unfinished),
            data.astype(np.uint8 if largest <= 255 else np.uint16),
            header,
            compression_level=COMPRESSION_LEVEL,
            index_order="F",
        )


def _segment_fields(key: str, layer: int, label: int, name: str, extent: str) -> dict[str, str]:
    terms = terms_of(name)
    kind = "~".join(f"{term.scheme}^{term.value}^{term.meaning}" for term in (terms.category, terms.kind))
    side = f"{terms.side.scheme}^{terms.side.value}^{terms.side.meaning}" if terms.side else "^^"
    lists = "Segmentation category and type - DICOM master list", "Anatomic codes - DICOM master list"
    return {
        f"{key}_ID": f"organ_{label}",
        f"{key}_Name": name,
        f"{key}_NameAutoGenerated": "0",
        f"{key}_Color": " ".join(f"{part:.3f}" for part in label_colour(label)),
        f"{key}_ColorAutoGenerated": "0",
        f"{key}_LabelValue": str(label),
        f"{key}_Layer": str(layer),
        f"{key}_Extent": extent,
        f"{key}_Tags": f"TerminologyEntry:{lists[0]}~{kind}~{side}~{lists[1]}~^^~^^|",
    }
