"""Organ: its name, its id for ever, and the body part it belongs to.

The table `organs.csv` decides which spelling of an organ is ours and which number it has in every label map
this package writes. Rows are only ever appended: a pack made today must mean the same organ in ten years.
The first 143 ids are the paper's organs in the order its datasets name them. An organ that is not in the
table is no error; it gets an id hashed from its name, the same on every machine. Two such names may have one
id; `with_distinct_ids` separates them within a model.

In:  any spelling (TotalSegmentator v1 and v2, MOOSE, OpenKBP, with spaces, dashes or capitals)
Out: Organ
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import count
from typing import Literal, cast, get_args

from continual_segment.errors import ModelError
from continual_segment.names import check_file_name, printable

BodyPart = Literal["head_neck", "chest", "abdomen", "hip_thigh", "whole"]
Side = Literal["left", "right", ""]
BODY_PARTS: tuple[BodyPart, ...] = ("hip_thigh", "abdomen", "chest", "head_neck")
"""The body from below, in four; the parts meet at the lower end-plates of L5, T11 and T2."""
UNKNOWN_PART = -1
"""In place of an index in BODY_PARTS where it is not known; no restriction."""

FIRST_HASHED_ID, LAST_HASHED_ID = 1000, 65535  # above every table row, within uint16
MOST_ORGANS = 1000
"""Of one dataset or pack: several times the largest dataset there is."""
MOST_IN_A_MODEL = 30_000
"""Fewer than half of the hashed ids, so that a free one is found soon."""


@dataclass(frozen=True)
class Organ:
    """One structure that can be segmented."""

    name: str
    """Our spelling, e.g. `vertebrae_L5`."""
    id: int
    """Its value in label maps; never reused and never changed for organs of the table."""
    snomed: str = ""
    """SNOMED CT code without its side, empty when unknown."""
    body_part: BodyPart = "whole"
    """Where it is; `whole` when it crosses body parts or is not in the table."""
    group: str = ""
    """Organs reported together, such as `ribs`."""
    side: Side = ""
    """`left` or `right`: DICOM writes it as a modifier beside the code."""

    def __post_init__(self) -> None:
        rules = {
            "name": bool(re.fullmatch(r"[^\W_]+(_[^\W_]+)*", self.name)),
            "id": type(self.id) is int and 1 <= self.id <= LAST_HASHED_ID,
            "snomed": bool(re.fullmatch(r"[0-9]{0,18}", self.snomed)),
            "body_part": self.body_part in get_args(BodyPart),
            "group": bool(re.fullmatch(r"\w{0,64}", self.group)),
            "side": self.side in get_args(Side),
        }
        for field, kept in rules.items():
            if not kept:
                value = printable(repr(getattr(self, field)))
                raise ValueError(f"An organ cannot have the {field} {value}.")


def canonical_name(name: str) -> str:
    """Our spelling of an organ's name; a name not in the table is only tidied."""
    key = _key(name)
    organ = _organs_by_key().get(key)
    return organ.name if organ else key


def find_organ(name: str) -> Organ:
    """The organ of that name, from the table or, for a new one, with an id hashed from its name."""
    key = _key(name)
    if not key:
        raise ValueError(f"An organ needs a name with letters or digits in it, not {name!r}.")
    organ = _organs_by_key().get(key)
    return organ or Organ(key, _hashed_id(key), side=_side(key))


def known_organs() -> tuple[Organ, ...]:
    """Every organ of the table, by id."""
    return tuple(organ for organ, _ in _table())


def check_organs(organs: Sequence[Organ], error: type[Exception]) -> None:
    """Raise `error` unless these can be the organs of one dataset or pack: our spelling, none of them twice.

    An organ's name becomes a file's name where results have one file per organ.
    """
    if not 1 <= len(organs) <= MOST_ORGANS:
        raise error(f"{len(organs)} organs were found; from 1 to {MOST_ORGANS} were expected.")
    for organ in organs:
        check_file_name(organ.name, "The organ", error)
        if organ.name not in _wholes() and organ.name != _key(organ.name):
            raise error(f"The organ '{organ.name}' is spelled '{canonical_name(organ.name)}' here.")
    names, ids = {organ.name for organ in organs}, {organ.id for organ in organs}
    if len(names) < len(organs) or len(ids) < len(organs):
        raise error(f"{len(organs)} organs have {len(names)} names and {len(ids)} ids. Each needs its own.")


def check_table(organs: Sequence[Organ], error: type[Exception]) -> None:
    """Raise `error` where an organ's name or id is another organ's in our table."""
    by_id = {organ.id: organ for organ in known_organs()}
    for organ in organs:
        for known in (_organs_by_key().get(_key(organ.name)), by_id.get(organ.id)):
            if known and (known.name, known.id) != (organ.name, organ.id):
                raise error(
                    f"The organ '{organ.name}' with id {organ.id} is '{known.name}' with id {known.id} in "
                    "the table of organs. Rename it in the dataset and learn it again."
                )


def with_distinct_ids(organs: Iterable[Organ]) -> dict[str, Organ]:
    """The organs of one model by name, each with an id of its own.

    Most keep theirs. Of organs with one id, that of the table keeps it, or else the first by name; the others
    get one from further hashes of their names. The ids depend on the set of organs, not on its order.
    """
    given = {organ.name: organ for organ in sorted(organs, key=lambda organ: -organ.id)}
    if len(given) > MOST_IN_A_MODEL:
        raise ModelError(f"{len(given)} organs were found; a model has at most {MOST_IN_A_MODEL}.")
    ordered = sorted(given.values(), key=lambda organ: (not in_table(organ), organ.name))
    keeps = {organ.id: organ.name for organ in reversed(ordered)}
    taken, found = set(keeps), {}
    for organ in ordered:
        id_ = organ.id if keeps[organ.id] == organ.name else _free_id(organ.name, taken)
        taken.add(id_)
        found[organ.name] = replace(organ, id=id_)
    return found


def in_table(organ: Organ) -> bool:
    """Whether the organ has its name and id from our table: its id is the same in every model."""
    known = _organs_by_key().get(_key(organ.name))
    return known is not None and (known.name, known.id) == (organ.name, organ.id)


def part_of(name: str) -> str:
    """The organ that this one is part of, such as the aorta for its arch; empty where there is none."""
    return _wholes().get(canonical_name(name), "")


def owned_wholes(organs: Iterable[Organ]) -> dict[int, int]:
    """Id of an organ -> id of the smallest of the others that it is part of; organs of none are left out.

    Lobes are parts of a lung side where that is among the organs, else of the lung, else of nothing.
    """
    ids = {organ.name: organ.id for organ in organs}
    found = {name: next((whole for whole in wholes_of(name) if whole in ids), None) for name in ids}
    return {ids[name]: ids[whole] for name, whole in found.items() if whole}


def wholes_of(name: str) -> Iterator[str]:
    """What an organ is part of, what that is part of, and so on."""
    while name := part_of(name):
        yield name


def other_side(name: str) -> str:
    """The same organ on the other side, `kidney_right` for `kidney_left`; the name itself without a side."""
    organ, sides = find_organ(name), {"left": "right", "right": "left"}
    words = (sides[word] if word == organ.side else word for word in organ.name.split("_"))
    return canonical_name("_".join(words))


def _key(name: str) -> str:
    """What two spellings of one name have in common: `Left Kidney`, `left-kidney` and `LeftKidney`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name.strip())
    return re.sub(r"[\W_]+", "_", words.lower()).strip("_")


def _side(key: str) -> Side:
    sides = {"left", "right"} & set(key.split("_"))
    return cast(Side, sides.pop()) if len(sides) == 1 else ""


def _hashed_id(key: str) -> int:
    digest = hashlib.sha256(key.encode()).digest()
    return FIRST_HASHED_ID + int.from_bytes(digest[:8], "big") % (LAST_HASHED_ID - FIRST_HASHED_ID + 1)


def _free_id(name: str, taken: set[int]) -> int:
    """The first of an organ's further hashes that is free; no name of an organ has a space."""
    return next(id_ for n in count(2) if (id_ := _hashed_id(f"{name} {n}")) not in taken)


@cache
def _organs_by_key() -> dict[str, Organ]:
    return {key: organ for organ, aliases in _table() for spelling in aliases for key in _spellings(spelling)}


def _spellings(name: str) -> Iterator[str]:
    """A name and the same with its side put first: `kidney_left`, `left_kidney`."""
    key = _key(name)
    yield key
    side = _side(key)
    if side:
        rest = "_".join(word for word in key.split("_") if word != side)
        yield from (f"{rest}_{side}", f"{side}_{rest}", f"{rest}_{side[0]}", f"{side[0]}_{rest}")


@cache
def _wholes() -> dict[str, str]:
    return {row["name"]: row["part_of"] for row in _rows()}


@cache
def _table() -> tuple[tuple[Organ, tuple[str, ...]], ...]:
    """Each organ with all its spellings, its own first."""
    return tuple(_organ(row) for row in _rows())


@cache
def _rows() -> tuple[dict[str, str], ...]:
    text = resources.files("continual_segment").joinpath("organs.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _organ(row: dict[str, str]) -> tuple[Organ, tuple[str, ...]]:
    organ = Organ(
        name=row["name"],
        id=int(row["id"]),
        snomed=row["snomed"],
        body_part=cast(BodyPart, row["body_part"]),
        group=row["group"],
        side=cast(Side, row["side"]),
    )
    return organ, (organ.name, *filter(None, row["aliases"].split(";")))
