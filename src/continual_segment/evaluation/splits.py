"""Which cases are scored, and which of them were used for training.

A score on training cases says nothing about new scans. So every evaluation records the split of its cases:
as the prepared dataset lists it, or as the names of a raw dataset's cases decide it. A plain folder of label
maps may be part of a dataset; there the split is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from continual_segment.data.splits import SPLITS, Split
from continual_segment.errors import ConfigError, DatasetError
from continual_segment.names import some_of

ScoredSplit = Literal["train", "validation", "test", "all"]
SplitSource = Literal["prepared dataset", "case names", "not known"]


@dataclass(frozen=True)
class CaseSplits:
    """The split that is scored, and the splits of single cases."""

    scored: ScoredSplit = "all"
    of_case: Mapping[str, Split] = field(default_factory=dict)
    """By the case's name; a case without an entry is in no split that is known."""
    source: SplitSource = "not known"
    """What decides `of_case`. Case names: as `conseg prepare` splits them; whether it did is not known."""

    def __contains__(self, case: str) -> bool:
        """Whether the case is scored."""
        return self.scored == "all" or self.of_case.get(case) == self.scored

    def among(self, cases: Iterable[str]) -> Self:
        """The same for these cases alone."""
        return replace(self, of_case={case: self.of_case[case] for case in cases if case in self.of_case})

    def counts(self, cases: Collection[str]) -> dict[str, int]:
        """How many of these cases are in each split, and how many in none that is known."""
        found = [self.of_case.get(case) for case in cases]
        return {**{split: found.count(split) for split in SPLITS}, "unknown": found.count(None)}

    def warning(self, cases: Collection[str]) -> str:
        """What to know before the scores of these cases are believed; empty where there is nothing."""
        if self.scored != "all" or not cases:
            return ""
        counts = self.counts(cases)
        if self.source == "not known":
            return (
                f"How many of the {len(cases)} cases scored were used for training is not known. Give the "
                "raw dataset as truth, or name the prepared one (--prepared) to score its test cases alone."
            )
        if not counts["train"] + counts["validation"]:
            return ""
        known = self.source == "prepared dataset"
        condition = "" if known else "If this dataset was prepared and learned, "
        return (
            f"{condition}{counts['train']} of {len(cases)} cases scored were used for training and "
            f"{counts['validation']} for validation; their scores say nothing about new scans. "
            f"The split test (--split test) has {counts['test']} of them."
        )

    def as_data(self, cases: Collection[str]) -> dict[str, Any]:
        """What `evaluation.json` records of the cases scored."""
        return {
            "split": self.scored,
            "split_known_by": self.source,
            "cases_per_split": self.counts(cases),
            "split_of_case": {case: self.of_case.get(case, "unknown") for case in cases},
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """What `as_data` gave; nothing known where an earlier version recorded nothing."""
        of_case = {case: split for case, split in data.get("split_of_case", {}).items() if split in SPLITS}
        return cls(data.get("split", "all"), of_case, data.get("split_known_by", "not known"))


def choose_splits(
    truth: Path, by_names: Mapping[str, Split], split: ScoredSplit | None, prepared: Path | None
) -> CaseSplits:
    """The splits of a truth's cases, `by_names` where no prepared dataset lists them.

    Unless `split` is given, the test cases are scored where a prepared dataset is known, else all cases.
    """
    if split is not None and split not in get_args(ScoredSplit):
        raise ConfigError(f"split is one of {', '.join(get_args(ScoredSplit))}, not {split!r}.")
    if prepared is not None:
        return CaseSplits(split or "test", listed_splits(prepared), "prepared dataset")
    if by_names:
        return CaseSplits(split or "all", by_names, "case names")
    if split not in (None, "all"):
        raise DatasetError(
            f"{truth}: which of its cases are in the split {split} is not known, as it is no raw dataset. "
            "Give the raw dataset as truth, or name the prepared one (--prepared)."
        )
    return CaseSplits()


def listed_splits(prepared: Path) -> dict[str, Split]:
    """Case name -> split, as a prepared dataset lists them."""
    from continual_segment.data.prepared import PreparedDataset  # blosc2, which scoring alone does not need

    return PreparedDataset.open(prepared).splits


def none_scored(truth: Path, splits: CaseSplits, paired: Collection[str]) -> DatasetError:
    """Predictions there are, but not of the split requested."""
    counts = splits.counts(paired)
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    some = some_of(sorted(paired), 3)
    return DatasetError(
        f"{truth}: none of the {len(paired)} cases with a prediction ({some}) is in the split "
        f"{splits.scored}; found: {found}. Segment cases of that split, or score another with --split."
    )
