"""How a series is shown: on one line of a list to choose from, and in the manifest.

Descriptions and the like come from outside: they are cleaned before they are shown, and only a hash of them
is stored.
"""

from __future__ import annotations

import hashlib
from typing import Any

from continual_segment.files.dicom.headers import text, words
from continual_segment.files.dicom.series import Series, Study
from continual_segment.names import printable

LONGEST, LONGEST_UID = 60, 64
PHASE = {
    "TemporalPositionIdentifier": "temporal position",
    "AcquisitionNumber": "acquisition",
    "NominalPercentageOfCardiacPhase": "cardiac phase",
    "ContrastBolusAgent": "contrast",
    "ImageComments": "comment",
}
"""Header field that can distinguish phases -> its name in a list."""


def listing(study: Study) -> str:
    """One line per series, with its position in front, and a last one on files that cannot be read."""
    found = enumerate(study.series, start=1)
    lines = [f"  #{at}: {title(series)} {printable(series.uid, LONGEST_UID)}" for at, series in found]
    if study.unreadable:
        lines.append(f"  {len(study.unreadable)} more DICOM files cannot be read.")
    return "\n".join(lines)


def title(series: Series) -> str:
    """Number, description, and what distinguishes it from other series of the study."""
    number = "without a number" if series.number is None else series.number
    description = f'"{_shown(series.description)}"' if series.description else "without a description"
    return f"series {number} {description} ({', '.join(_facts(series))})"


def _facts(series: Series) -> list[str]:
    pixel = " x ".join(f"{side:.2f}" for side in series.frames[0].pixel_mm)
    slices = "1 slice" if len(series.frames) == 1 else f"{len(series.frames)} slices"
    step = "" if series.step_mm is None else f" {series.step_mm:.2f} mm apart"
    facts = [
        _shown(series.modality) or "no modality",
        f"{slices}{step}",
        f"{pixel} mm pixels",
    ]
    if kernel := "/".join(words(series.header, "ConvolutionKernel")):
        facts.append(f"kernel {_shown(kernel)}")
    facts += [f"{name} {_shown(value)}" for key, name in PHASE.items() if (value := text(series.header, key))]
    if series.is_localiser or series.is_derived:
        facts.append("a localiser" if series.is_localiser else "derived")
    return facts


def _shown(value: str) -> str:
    return printable(value, LONGEST)


def for_manifest(series: Series) -> dict[str, Any]:
    """What identifies a series to those who have the study, and nothing to others."""
    digest = hashlib.sha256(series.description.encode("utf-8", "replace")).hexdigest()
    return {
        "number": series.number,
        "sha256_of_description": digest if series.description else None,
        "slices": len(series.frames),
    }
