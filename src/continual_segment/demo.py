"""demo: the whole way on phantoms, from raw datasets to a report.

Four datasets are learned one after the other. After every step the held-out scans of every dataset
learned so far are segmented anew, by the pack that learned them and by all packs together, and scored;
so a forgetting of 0 in the report is measured, not assumed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from continual_segment.config import ExperimentConfig
from continual_segment.data.prepare import prepare
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawCase, RawDataset
from continual_segment.errors import ConfigError
from continual_segment.evaluation.evaluate import score_case
from continual_segment.evaluation.report import DemoResult, Example, StepScores, write_report
from continual_segment.evaluation.scores import Evaluation
from continual_segment.learning import learn
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, verify
from continual_segment.phantom import DATASETS, write_phantom
from continual_segment.segmentation import Segmenter
from continual_segment.training.history import read_history

log = logging.getLogger(__name__)

ORDER = ("totalseg", "chest", "headneck", "esophagus")


def demo(
    folder: Path, config: ExperimentConfig, cases: int = 20, held_out: int = 3, seed: int = 0, preset: str = "demo"
) -> Path:
    """Learn four phantom datasets in `folder` and write `folder`/report.html; return its path.

    `held_out` scans of each dataset's test split are segmented after every step.
    """
    if (folder / "model").exists():
        raise ConfigError(f"{folder} holds a finished demo. Choose another --out, or delete it.")
    started = time.monotonic()
    datasets = {name: make_dataset(folder, name, config, cases, seed) for name in ORDER}
    tests = {name: test_cases(*datasets[name], held_out) for name in ORDER}
    steps = []
    for number, name in enumerate(ORDER, start=1):
        log.info("Step %d of %d: %s", number, len(ORDER), name)
        begun = time.monotonic()
        learn(datasets[name][1], folder / "model", config.learn, name, anomalies=anomalies(name))
        seconds = time.monotonic() - begun
        steps.append(score_step(folder / "model", name, seconds, {n: tests[n] for n in ORDER[:number]}, config))
    result = DemoResult(
        model=folder / "model",
        steps=steps,
        examples=[example(folder / "model", name, *tests[name], config) for name in ORDER],
        histories={name: read_history(run_folder(folder / "model", name)) for name in ORDER},
        verification=verify(folder / "model"),
        seconds=time.monotonic() - started,
        commands=commands(folder, cases, seed, preset),
    )
    return write_report(folder, result)


def anomalies(name: str) -> Sequence[str]:
    return ("esophageal tumour",) if DATASETS[name].tumour else ()


def make_dataset(
    folder: Path, name: str, config: ExperimentConfig, cases: int, seed: int
) -> tuple[RawDataset, PreparedDataset]:
    raw = RawDataset.open(write_phantom(folder / "raw", name, cases, seed), progress=False)
    return raw, prepare(raw, folder / "prepared" / name, config.prepare)


def test_cases(raw: RawDataset, prepared: PreparedDataset, count: int) -> tuple[RawDataset, list[RawCase]]:
    names = prepared.case_names("test")[:count]
    return raw, [case for case in raw.cases if case.name in names]


def score_step(
    model: Path,
    name: str,
    seconds: float,
    tests: dict[str, tuple[RawDataset, list[RawCase]]],
    config: ExperimentConfig,
) -> StepScores:
    """Segment and score the held-out scans of every dataset learned so far."""
    opened = Model.open(model)
    everything = Segmenter(opened, config=config.segment)
    alone, merged = {}, {}
    for dataset, (raw, cases) in tests.items():
        own = Segmenter(opened, packs=[dataset], config=config.segment)
        alone[dataset] = score(own, raw, cases)
        # with one pack installed both are the same work
        merged[dataset] = score(everything, raw, cases) if len(opened.pack_names) > 1 else alone[dataset]
    return StepScores(name, opened.pack(name), seconds, alone, merged)


def score(segmenter: Segmenter, raw: RawDataset, cases: Sequence[RawCase]) -> Evaluation:
    rows = []
    for case in cases:
        scan, truth = raw.read(case)
        labels, _ = segmenter(scan, title=case.name)
        rows += score_case(case.name, labels, truth)
    return Evaluation.from_rows(rows)


def example(model: Path, name: str, raw: RawDataset, cases: Sequence[RawCase], config: ExperimentConfig) -> Example:
    """One held-out scan with its truth, its own pack's answer and that of all packs."""
    opened = Model.open(model)
    scan, truth = raw.read(cases[0])
    own, everything = (Segmenter(opened, packs=packs, config=config.segment) for packs in ([name], None))
    return Example(name, cases[0].name, scan, truth, own(scan)[0], everything(scan)[0])


def commands(folder: Path, cases: int, seed: int, preset: str) -> list[str]:
    """What a user would type for the same result, step by step."""
    model, raw, prepared = folder / "model", folder / "raw", folder / "prepared"
    lines = [f"conseg demo --out {folder} --cases {cases} --seed {seed} --preset {preset}", ""]
    for name in ORDER:
        root = raw / f"Dataset{900 + DATASETS[name].number}_{name}"
        extra = "".join(f" --anomaly '{kind}'" for kind in anomalies(name))
        lines += [
            f"conseg phantom {raw} --dataset {name} --cases {cases} --seed {seed}",
            f"conseg prepare {root} -o {prepared / name} --preset {preset}",
            f"conseg learn {prepared / name} -m {model} --preset {preset} --name {name}{extra}",
        ]
    lines += [f"conseg verify {model}", f"conseg segment {root / 'imagesTr'} -m {model} -o {folder / 'segmented'}"]
    return [*lines, f"conseg evaluate {folder / 'segmented'} {root} -o {folder / 'scores'}"]
