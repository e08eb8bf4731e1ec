"""DICOM Segmentation: organs as segments with SNOMED codes, on the slices they were found in.

In:  label maps that share a grid (one per layer where organs are parts of organs), the series they belong to
Out: one .dcm file, binary (a bit plane per organ) or a label map (a number per voxel)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import highdicom as hd
import numpy as np
from highdicom.color import CIELabColor
from highdicom.seg import SegmentationTypeValues, SegmentDescription
from pydicom.sr.coding import Code
from pydicom.uid import ExplicitVRLittleEndian

from continual_segment.errors import ScanError
from continual_segment.files.atomic import atomic_path
from continual_segment.files.dicom.headers import BROKEN
from continual_segment.files.dicom.identity import MANUFACTURER, number_frames, source_images
from continual_segment.files.dicom.made_uids import digest_of, made_uid
from continual_segment.files.dicom.planes import planes
from continual_segment.files.dicom.series import Series
from continual_segment.files.organ_colours import label_colour
from continual_segment.files.terms import Term, terms_of
from continual_segment.volume import LabelMap

LARGEST_BYTES = 4 * 2**30
"""Of bit planes in memory; only organs within organs need them all at once."""
SERIES_NUMBER = 300


def write_segmentation(
    path: Path, layers: Sequence[LabelMap], series: Series, version: str, label_map: bool = False
) -> bool:
    """Write the organs that were found; False, and no file, where there are none."""
    pixels, organs = _pixels(path, layers, series, label_map)
    if not organs:
        return False
    digest = digest_of(series, (version, str(label_map), repr(organs), pixels.tobytes()))
    kind = SegmentationTypeValues.LABELMAP if label_map else SegmentationTypeValues.BINARY
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = hd.seg.Segmentation(
                source_images=source_images(series),
                pixel_array=pixels,
                segmentation_type=kind,
                segment_descriptions=[
                    _describe(n, *organ, version, digest) for n, organ in enumerate(organs, 1)
                ],
                series_instance_uid=made_uid(digest, "series"),
                series_number=SERIES_NUMBER,
                sop_instance_uid=made_uid(digest, "instance"),
                instance_number=1,
                manufacturer=MANUFACTURER,
                manufacturer_model_name="conseg",
                software_versions=version,
                device_serial_number="0",
                series_description="Organs by Continual Segment",
                content_label="ORGANS",
                transfer_syntax_uid=ExplicitVRLittleEndian,
                omit_empty_frames=not label_map,
            )
            number_frames(result, series)
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise ScanError(f"{path.name}: the series cannot carry a DICOM segmentation ({reason}).") from error
    with atomic_path(path) as unfinished:
        result.save_as(unfinished)
    return True


def _pixels(
    path: Path, layers: Sequence[LabelMap], series: Series, label_map: bool
) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """Segment numbers (frame, row, column) or, of organs that share voxels, bit planes with a last axis."""
    stacks = [np.stack(list(planes(layer, series))) for layer in layers]
    if label_map and len(stacks) > 1:  # one number per voxel: the smallest part is drawn over its wholes
        drawn = stacks[0]
        for stack in stacks[1:]:
            drawn = np.where(stack > 0, stack, drawn)
        stacks = [drawn]
    names = {label: name for layer in layers for label, name in layer.names.items()}
    found = sorted({int(label) for stack in stacks for label in np.unique(stack)} - {0})
    organs = [(label, names[label]) for label in found]
    if len(stacks) == 1 or not found:
        number_of = np.zeros(max(found, default=0) + 1, np.uint8 if len(found) <= 255 else np.uint16)
        number_of[found] = np.arange(1, len(found) + 1)
        return number_of[stacks[0]], organs
    if stacks[0].size * len(found) > LARGEST_BYTES:
        size = stacks[0].size * len(found) / 2**30
        raise ScanError(
            f"{path}: {len(found)} organs that share voxels would need {size:.0f} GiB at once. Choose "
            "fewer with --organs, or write seg.nrrd."
        )
    bits = np.stack([np.any([stack == label for stack in stacks], axis=0) for label in found], axis=-1)
    return bits.astype(np.uint8), organs


def _describe(number: int, label: int, name: str, version: str, digest: str) -> SegmentDescription:
    terms = terms_of(name)
    red, green, blue = label_colour(label)
    algorithm = hd.AlgorithmIdentificationSequence(
        name="Continual Segment", family=Code("123109", "DCM", "Artificial Intelligence"), version=version
    )
    description = SegmentDescription(
        segment_number=number,
        segment_label=name[:64],
        segmented_property_category=_code(terms.category),
        segmented_property_type=_code(terms.kind),
        algorithm_type="AUTOMATIC",
        algorithm_identification=algorithm,
        tracking_uid=made_uid(digest, f"organ {label}"),
        tracking_id=name[:64],
        display_color=CIELabColor.from_rgb(*(round(255 * part) for part in (red, green, blue))),
    )
    description.SegmentDescription = f"organ id {label}"
    if terms.side:
        kind = description.SegmentedPropertyTypeCodeSequence[0]
        kind.SegmentedPropertyTypeModifierCodeSequence = [hd.sr.CodedConcept.from_code(_code(terms.side))]
    return description


def _code(term: Term) -> Code:
    return Code(term.value, term.scheme, term.meaning)
