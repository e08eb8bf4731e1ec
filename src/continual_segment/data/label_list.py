"""Which number means which organ in a dataset's label files.

Decides what a list of labels must be to learn from it: every organ one positive number of its own and a name
that is no other organ's, also after aliases. All problems are listed at once.

In:  pairs of name and number, as dataset.json lists them
Out: names by number, and the problems
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from continual_segment.errors import DatasetError
from continual_segment.names import printable
from continual_segment.organs import check_organs, find_organ

BACKGROUND_NAMES = {"background", "bg", "unlabeled", "unlabelled", "none"}


def read_label_list(pairs: Iterable[tuple[str, Any]]) -> tuple[dict[int, str], list[str]]:
    """Names by number without the background, and a sentence for everything that cannot be."""
    names: dict[int, str] = {}
    problems: list[str] = []
    accepted: list[str] = []
    for name, value in pairs:
        number = _number(value)
        problem = _problem(name, value, number)
        if problem:
            problems.append(problem)
        elif number in names:
            problems.append(
                f"The labels {names[number]!r} and {name!r} share number {number}. Give each its own."
            )
        elif number:
            names[number] = name
            accepted.append(name)
    if not names and not problems:
        problems.append("The list of labels names no organ. Add one with a number above 0.")
    return names, problems + same_organ_problems(accepted)


@lru_cache(maxsize=4096)  # a dataset repeats its organs' names in every case
def organ_name_problem(name: str) -> str:
    """Why a name cannot be an organ's; empty if it can."""
    if not any(character.isalnum() for character in name):
        return "has no name. Name the organ."
    try:
        check_organs([find_organ(name)], DatasetError)
    except DatasetError as error:
        return f"has a name that cannot be used. {error}"
    return ""


def same_organ_problems(names: Iterable[str]) -> list[str]:
    """A sentence for every two names that would be one organ."""
    by_id: defaultdict[int, list[str]] = defaultdict(list)
    for name in names:
        by_id[find_organ(name).id].append(name)
    return [_same_organ(spellings) for spellings in by_id.values() if len(spellings) > 1]


def _same_organ(spellings: list[str]) -> str:
    ours = {find_organ(name).name for name in spellings}
    listed = " and ".join(repr(name) for name in spellings)
    if len(ours) == 1:
        return f"The organ {ours.pop()} occurs {len(spellings)} times, as {listed}. Merge or rename them."
    return f"The organs {listed}, which are not in the organ table, get the same id by chance. Rename one."


def _problem(name: str, value: Any, number: int | None) -> str | None:
    is_background = name.strip().lower() in BACKGROUND_NAMES
    if name.strip().lower() == "ignore":
        return (
            "The label 'ignore' marks voxels without a label, which is not supported. Leave those cases out."
        )
    if isinstance(value, list):
        return (
            f"The label {name!r} is a region of several numbers, {value}, which is not supported. "
            "Give each organ one number."
        )
    if number is None or not 0 <= number <= 65535:
        return (
            f"The label {name!r} has the number {printable(repr(value))}; a whole number from 0 to 65535 was "
            "expected."
        )
    if is_background != (number == 0):
        return (
            f"The label {name!r} has number {number}; 0 is for the background and nothing else. Renumber it."
        )
    if number and (problem := organ_name_problem(name)):
        return f"Label number {number} {problem}"
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
