"""RawDataset: a folder of scans and labels, checked on opening.

Hours of training on a broken case are worse than a refusal, so every case is read before anything is learned
and all problems are listed at once. The layouts are in layouts.py, the rules for one case in check.py.

In:  a folder in nnU-Net's raw layout, TotalSegmentator's or the Decathlon's
Out: cases, organs, and per case a scan with labels 1..n on the same grid
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from continual_segment.data.check import CaseReport, LoadedCase, check_case, load_case
from continual_segment.data.layouts import FoundDataset, Layout, RawCase, find_dataset
from continual_segment.data.splits import Split, split_cases
from continual_segment.errors import DatasetError
from continual_segment.names import printable, some_of
from continual_segment.organs import Organ, find_organ
from continual_segment.processes import for_each, workers_for
from continual_segment.volume import LabelMap, Volume

__all__ = ["RawCase", "RawDataset"]

LONGEST_PROBLEM = 2000
"""Letters of one problem that are shown."""


@dataclass(frozen=True)
class RawDataset:
    """Scans with labels as a user has them."""

    folder: Path
    name: str
    """The folder's name."""
    layout: Layout
    organs: tuple[Organ, ...]
    """Label i of a case that was read is organ i - 1 of these."""
    cases: tuple[RawCase, ...]
    label_names: dict[int, str]
    """Number in the label files -> name as the dataset spells it, in the order of `organs`."""
    notes: tuple[str, ...] = field(default=())
    """What is worth knowing and no error, such as masks that overlap."""
    published_splits: dict[str, Split] = field(default_factory=dict)
    """Of cases whose split the dataset itself gives, in a `meta.csv`."""

    @property
    def splits(self) -> dict[str, Split]:
        """The split of every case: the published one, or by its name."""
        published = self.published_splits
        others = split_cases(case.name for case in self.cases if case.name not in published)
        return {case.name: published.get(case.name) or others[case.name] for case in self.cases}

    @classmethod
    def open(
        cls, folder: Path | str, workers: int | None = None, check: bool = True, progress: bool = True
    ) -> Self:
        """Find the cases and check every one; DatasetError lists every problem of every case.

        `workers` processes read in parallel; by default one per core, and fewer for small data. Without
        `check` no voxel is read here; `read` then still refuses a bad case.
        """
        folder = Path(folder)
        found = find_dataset(folder)
        reports = _check(found, workers, progress) if check else []
        problems = [*found.problems, *(problem for report in reports for problem in report.problems)]
        if not found.cases and not problems:
            problems.append("There is not one case with scan and labels.")
        if problems:
            raise DatasetError(_all_problems(folder, problems))
        label_names = dict(sorted(found.names.items()))
        organs = tuple(find_organ(name) for name in label_names.values())
        name = folder.resolve().name
        notes = tuple(_notes(reports))
        return cls(folder, name, found.layout, organs, found.cases, label_names, notes, found.splits)

    def read(self, case: RawCase) -> tuple[Volume, LabelMap]:
        """Scan and labels on one grid; labels are 1..n in the order of `organs`, 0 is background."""
        loaded = self._load(case, with_scan=True)
        assert loaded.scan is not None  # else there was a problem
        assert loaded.labels is not None
        return loaded.scan, loaded.labels

    def read_labels(self, case: RawCase) -> LabelMap:
        """The labels alone, as `read` numbers them; the scan is not opened and the grid is their own."""
        labels = self._load(case, with_scan=False).labels
        assert labels is not None  # else there was a problem
        return labels

    def _load(self, case: RawCase, with_scan: bool) -> LoadedCase:
        loaded = load_case(case, self.label_names, self.layout == "totalsegmentator", with_scan)
        if loaded.problems:
            problems = [f"{case.name}: {problem}" for problem in loaded.problems]
            raise DatasetError(_all_problems(self.folder, problems))
        return loaded


def _check(found: FoundDataset, workers: int | None, progress: bool) -> list[CaseReport]:
    outcome = for_each(
        check_case,
        {case.name: (case,) for case in found.cases},
        (found.names, found.layout == "totalsegmentator"),
        workers_for((case.scan for case in found.cases), workers),
        "Checking",
        progress,
    )
    unread = {
        name: CaseReport(name, (f"{name}: {reason}",), Counter(), without_organs=False)
        for name, reason in outcome.failures.items()
    }
    reports = outcome.results | unread
    return [reports[name] for name in dict.fromkeys(case.name for case in found.cases)]


def _all_problems(folder: Path, problems: list[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    shown = [printable(problem, LONGEST_PROBLEM) for problem in problems]  # names in it come from outside
    return "\n- ".join([f"{folder}: the dataset has {count}:", *shown])


def _notes(reports: Sequence[CaseReport]) -> Iterator[str]:
    without_organs = [report.case for report in reports if report.without_organs]
    if without_organs:
        share = f"{len(without_organs)} of {len(reports)} cases"
        yield f"No organ is labelled in {share}: {some_of(without_organs)}."
    voxels: Counter[tuple[str, str]] = Counter()
    cases: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for report in reports:
        voxels += report.overlaps
        for pair in report.overlaps:
            cases[pair].append(report.case)
    for pair, count in voxels.most_common():
        yield (
            f"The masks of {' and '.join(pair)} overlap in {count} voxels of {some_of(cases[pair])}; "
            "the organ that is smaller in the case keeps them."
        )
