"""The continual protocol: learn datasets in order, and score all of them after every step.

After a step, the held-out scans of every dataset learned so far are segmented by the pack that learned
them, as by a model with this pack alone, and by all packs together. So a forgetting of 0 in the report is
measured, not assumed. Call it again to resume a stopped run.

In:  raw datasets in the order of learning
Out: a model, scores per step, report.html
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from continual_segment.config import ExperimentConfig
from continual_segment.data.prepare import prepare
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawCase, RawDataset
from continual_segment.errors import ConfigError, DatasetError
from continual_segment.evaluation.evaluate import score_case
from continual_segment.evaluation.report import Example, Report, StepScores
from continual_segment.evaluation.scores import Evaluation, ScoreRow
from continual_segment.evaluation.splits import CaseSplits
from continual_segment.learning import learn_dataset
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, verify
from continual_segment.segmentation import Segmenter
from continual_segment.segmentation.segmenter import LabelRule
from continual_segment.training.history import read_history
from continual_segment.volume import LabelMap

log = logging.getLogger(__name__)

HeldOutSplit = Literal["test", "validation"]


@dataclass(frozen=True)
class ProtocolDataset:
    """One dataset of the order."""

    raw: RawDataset
    anomalies: Sequence[str] = field(default=())
    """Diseases in its scans."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The test scans of a dataset, or those of its validation split, by which settings are chosen."""

    raw: RawDataset
    cases: Sequence[RawCase]
    split: HeldOutSplit = "test"

    @property
    def splits(self) -> CaseSplits:
        """The split that an evaluation of these scans records."""
        return CaseSplits(self.split, {case.name: self.split for case in self.cases}, "prepared dataset")

    @classmethod
    def of(
        cls, raw: RawDataset, prepared: PreparedDataset, at_most: int | None, split: HeldOutSplit = "test"
    ) -> HeldOut:
        check_held_out(at_most)
        names = prepared.case_names(split)[:at_most]
        if not names:
            raise DatasetError(
                f"{raw.folder}: no case is in the {split} split. At least three cases are needed."
            )
        return cls(raw, [case for case in raw.cases if case.name in names], split)


def check_held_out(at_most: int | None) -> None:
    """Raise where it does not say how many scans of a split are segmented; None takes all."""
    if at_most is not None and at_most < 1:
        raise ConfigError(
            f"At least one scan of every dataset is held out, not {at_most}. Leave it out for all."
        )


def run_protocol(
    folder: Path,
    datasets: Mapping[str, ProtocolDataset],
    config: ExperimentConfig,
    held_out: int | None = None,
    examples: Mapping[str, Example] | None = None,
) -> Report:
    """Learn the datasets in `folder`/model, by name and in this order, and score after each.

    `held_out` limits how many scans of each test split are segmented; None takes all. `examples` are scans to
    show that were segmented after the last step; those of other datasets are segmented again.
    """
    started = time.monotonic()
    model = folder / "model"
    fresh = not run_folder(model, "").exists()
    prepared = {
        name: prepare(dataset.raw, folder / "prepared" / name, config.prepare)
        for name, dataset in datasets.items()
    }
    tests = {name: HeldOut.of(dataset.raw, prepared[name], held_out) for name, dataset in datasets.items()}
    steps, known = [], examples or {}
    for number, name in enumerate(datasets, start=1):
        log.info("Step %d of %d: %s", number, len(datasets), name)
        if not (model.exists() and name in Model.open(model).pack_names):
            learn_dataset(prepared[name], model, config, name, anomalies=datasets[name].anomalies)
        learned = dict(list(tests.items())[:number])
        steps.append(score_step(model, name, learned, config, scores_folder(folder, number)))
    return Report(
        model=model,
        steps=steps,
        examples=[known.get(name) or make_example(model, name, tests[name], config) for name in datasets],
        histories={name: read_history(run_folder(model, name)) for name in datasets},
        verification=verify(model),
        seconds=time.monotonic() - started if fresh else None,
    )


def scores_folder(folder: Path, step: int) -> Path:
    """Where the scores after a step are stored; the first step is 1."""
    return folder / "scores" / f"step_{step}"


def score_step(
    model: Path, name: str, tests: Mapping[str, HeldOut], config: ExperimentConfig, folder: Path
) -> StepScores:
    """Segment and score the held-out scans of every dataset learned so far, by own pack and by all."""
    packs = tuple(tests)
    found = {dataset: score(model, dataset, packs, test, config, folder) for dataset, test in tests.items()}
    alone = {dataset: own for dataset, (own, _) in found.items()}
    merged = {dataset: everything for dataset, (_, everything) in found.items()}
    return StepScores(name, Model.open(model).pack(name), alone, merged)


def score(
    model: Path,
    dataset: str,
    packs: Sequence[str],
    test: HeldOut,
    config: ExperimentConfig,
    folder: Path,
) -> tuple[Evaluation, Evaluation]:
    """Scores on the held-out scans of the dataset's own pack, and of all these packs together.

    Both are stored in `folder`, and read from there where they exist.
    """
    score_and_show(model, dataset, packs, test, config, folder)
    own, merged = score_folders(folder, dataset)
    return Evaluation.read(own), Evaluation.read(merged)


def score_and_show(
    model: Path,
    dataset: str,
    packs: Sequence[str],
    test: HeldOut,
    config: ExperimentConfig,
    folder: Path,
) -> Example | None:
    """Store the same scores, and return the first scan to look at; None if they exist, as nothing is done."""
    own, merged = score_folders(folder, dataset)
    if is_scored(own) and is_scored(merged):
        return None
    opened = Model.open(model)
    segmenter = Segmenter(opened, packs=packs, config=config.segment)
    rules = {own: segmenter.single_pack_rule(dataset), merged: segmenter.merge_rule()}
    first = score_rules(segmenter, rules, test, opened.encoder_fingerprint)
    return Example(dataset, test.cases[0].name, *test.raw.read(test.cases[0]), first[own], first[merged])


def score_folders(folder: Path, dataset: str) -> tuple[Path, Path]:
    """Where the scores of a dataset by its own pack, and by all packs, are stored."""
    return folder / dataset, folder / f"{dataset}_merged"


def score_rules(
    segmenter: Segmenter, rules: Mapping[Path, LabelRule], test: HeldOut, first_step: str
) -> dict[Path, LabelMap]:
    """Segment the held-out scans once, write the scores by each rule to its folder, return the first labels.

    `first_step` is the fingerprint of the encoder after the first step, which an evaluation records.
    """
    named = {str(folder): rule for folder, rule in rules.items()}
    rows: dict[str, list[ScoreRow]] = {folder: [] for folder in named}
    first: dict[Path, LabelMap] = {}
    for case in test.cases:
        scan, truth = test.raw.read(case)
        for folder, found in segmenter.compare_rules(scan, named, title=case.name).items():
            rows[folder] += score_case(case.name, found.labels, truth)
            first.setdefault(Path(folder), found.labels)
    for folder, scored in rows.items():
        Evaluation.from_rows(scored, test.splits, first_step).write(folder)
    return first


def is_scored(folder: Path) -> bool:
    return (folder / "evaluation.json").exists()


def make_example(model: Path, name: str, test: HeldOut, config: ExperimentConfig) -> Example:
    """One held-out scan with its ground truth, its own pack's labels and those of all packs."""
    opened, case = Model.open(model), test.cases[0]
    scan, truth = test.raw.read(case)
    segmenter = Segmenter(opened, config=config.segment)
    rules = {"own": segmenter.single_pack_rule(name), "merged": segmenter.merge_rule()}
    found = segmenter.compare_rules(scan, rules)
    return Example(name, case.name, scan, truth, found["own"].labels, found["merged"].labels)
