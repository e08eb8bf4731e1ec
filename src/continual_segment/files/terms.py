"""What an organ is called in the code systems that DICOM and 3D Slicer know.

A SNOMED code means the organ of either side; left and right are a modifier. An organ without a code, because
SNOMED has none or the table does not list it yet, gets its own name in a private scheme: never a wrong code.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from continual_segment.organs import Organ, find_organ, in_table

SNOMED, PRIVATE = "SCT", "99CONSEG"
LONGEST_VALUE, LONGEST_MEANING = 16, 64  # characters in DICOM


@dataclass(frozen=True)
class Term:
    """A code of a scheme and what it means."""

    value: str
    scheme: str
    meaning: str


ANATOMY = Term("91723000", SNOMED, "Anatomical Structure")
CHANGED = Term("49755003", SNOMED, "Morphologically Abnormal Structure")
TISSUE = Term("85756007", SNOMED, "Tissue")
OBJECT = Term("260787004", SNOMED, "Physical object")
SIDES = {"left": Term("7771000", SNOMED, "Left"), "right": Term("24028007", SNOMED, "Right")}
DISEASE = {"tumor", "tumour", "cyst", "nodules", "effusion", "hemorrhage"}
OBJECTS = {"implant"}
TISSUES = {"fat"}


@dataclass(frozen=True)
class Terms:
    """Category, kind and side of an organ."""

    category: Term
    kind: Term
    side: Term | None


def terms_of(name: str) -> Terms:
    organ = find_organ(name)
    words = set(organ.name.split("_"))
    others = ((CHANGED, words & DISEASE), (OBJECT, words & OBJECTS), (TISSUE, words & TISSUES))
    category = next((term for term, fits in others if fits), ANATOMY)
    return Terms(category, _kind(organ), SIDES.get(organ.side))


def _kind(organ: Organ) -> Term:
    words = organ.name.split("_")
    meaning = " ".join(word for word in words if word != organ.side)[:LONGEST_MEANING]
    if organ.snomed:
        return Term(organ.snomed, SNOMED, meaning.capitalize())
    return Term(f"ORGAN-{_number(organ)}"[:LONGEST_VALUE], PRIVATE, meaning.capitalize())


def _number(organ: Organ) -> str:
    """The organ's id; of an organ outside the table, which may share its id, more digits of a hash."""
    return str(organ.id) if in_table(organ) else hashlib.sha256(organ.name.encode()).hexdigest()
