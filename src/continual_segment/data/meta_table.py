"""Splits that a dataset publishes itself, in TotalSegmentator's `meta.csv`.

Scores compare with those of others only on the same test cases, so the published split takes precedence over
that by case names. The table has a row per case; columns other than `image_id` and `split` are not read.

In:  meta.csv, the names of the cases at hand
Out: case -> split, and what is wrong with the table
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

from continual_segment.data.splits import Split, split_cases
from continual_segment.names import printable

WORDS: dict[str, Split] = {
    "train": "train",
    "val": "validation",
    "validation": "validation",
    "test": "test",
}
LARGEST = 16 * 2**20
"""Bytes; the table of 1228 cases has a hundredth of it."""


def published_splits(path: Path, cases: Collection[str]) -> tuple[dict[str, Split], list[str]]:
    """The split of every case that the table lists; empty without a table or without its column `split`.

    Where no case is for validation, some of the training cases are, by their names.
    """
    if not path.is_file():
        return {}, []
    try:
        rows = read_rows(path)
    except (OSError, ValueError, csv.Error) as error:
        return {}, [f"{path.name} cannot be read ({printable(str(error))}). Correct the table or remove it."]
    words = {row["image_id"]: row["split"].strip().lower() for row in rows if row["image_id"] in cases}
    unknown = {word: case for case, word in words.items() if word not in WORDS}
    problems = [
        f"{path.name} has the split {printable(word)!r} for the case {printable(case)}; "
        f"{', '.join(WORDS)} were expected."
        for word, case in unknown.items()
    ]
    return with_validation({case: WORDS[word] for case, word in words.items() if word in WORDS}), problems


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows with both columns; none where the table has no such columns."""
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has {path.stat().st_size} bytes, at most {LARGEST} were expected")
    text = path.read_text(encoding="utf-8-sig")
    header = text.partition("\n")[0]
    rows = csv.DictReader(text.splitlines(), delimiter=";" if ";" in header else ",")
    if not {"image_id", "split"} <= set(rows.fieldnames or ()):
        return []
    return [row for row in rows if row["image_id"] and row["split"]]


def with_validation(splits: dict[str, Split]) -> dict[str, Split]:
    """The same with cases for validation, where there would be none; test cases stay test cases."""
    if "validation" in splits.values():
        return splits
    by_name = split_cases(case for case, split in splits.items() if split == "train")
    return splits | {case: split for case, split in by_name.items() if split == "validation"}
