"""demo: the continual protocol on phantoms, from generated scans to a report.

Independent work runs in parallel: phantoms are generated while the first dataset is learned, later packs,
which depend on the frozen encoder alone, are learned two at a time, and so are held-out scans segmented;
networks this small gain little from a second thread. The scores of a step are those of the packs up to it.
"""

from __future__ import annotations

import io
import json
import logging
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from continual_segment.config import ExperimentConfig, load_preset
from continual_segment.data.prepare import prepare
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.errors import ConfigError
from continual_segment.evaluation.report import EXAMPLES, Example, write_report
from continual_segment.files.atomic import write_json
from continual_segment.lab.phantom import DATASETS, dataset_folder, write_phantom
from continual_segment.lab.protocol import (
    HeldOut,
    ProtocolDataset,
    run_protocol,
    score_and_show,
    scores_folder,
)
from continual_segment.learning import learn_dataset
from continual_segment.malloc import keep_freed_memory
from continual_segment.model import Model
from continual_segment.processes import beside, for_each, usable_cores

log = logging.getLogger(__name__)

ORDER = ("totalseg", "chest", "headneck", "esophagus")
EFFORT = {"esophagus": 2}
"""Multiples of patients and updates: the one organ of this dataset is thin, and displaced by tumours."""


@dataclass(frozen=True)
class Demo:
    """The tasks of a demo; those that an earlier run finished are skipped."""

    folder: Path
    preset: str
    cases: int
    seed: int

    @property
    def config(self) -> ExperimentConfig:
        return load_preset(self.preset)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def raw(self, name: str) -> RawDataset:
        return RawDataset.open(dataset_folder(self.folder / "raw", name), workers=1, progress=False)

    def prepared(self, name: str) -> Path:
        return self.folder / "prepared" / name

    def cases_of(self, name: str) -> int:
        return self.cases * EFFORT.get(name, 1)

    def updates_of(self, name: str) -> int:
        schedule = self.config.first if name == ORDER[0] else self.config.later
        return schedule.iterations * EFFORT.get(name, 1)

    def make(self, names: Sequence[str], workers: int | None = 1) -> None:
        """Phantoms, prepared."""
        config = self.config.prepare
        for name in names:
            root = dataset_folder(self.folder / "raw", name)
            if not (root / "dataset.json").exists():  # written last
                cases, spacing_mm = self.cases_of(name), config.spacing_mm
                write_phantom(root.parent, name, cases, self.seed, spacing_mm, workers=workers, organs="demo")
            prepare(self.raw(name), self.prepared(name), config, workers, progress=False)

    def learn(self, name: str) -> None:
        """One pack."""
        if self.model.exists() and name in Model.open(self.model).pack_names:
            return
        prepared = PreparedDataset.open(self.prepared(name))
        config = self.config.on(iterations=self.updates_of(name))
        learn_dataset(prepared, self.model, config, name, anomalies=anomalies(name))

    def score(self, name: str, step: int, held_out: int | None) -> Example | None:
        """The packs that there were after a step, on the held-out scans of one dataset; after the last step
        the first of them, unless they had been scored."""
        raw = RawDataset.open(dataset_folder(self.folder / "raw", name), check=False, progress=False)
        test = HeldOut.of(raw, PreparedDataset.open(self.prepared(name)), held_out)
        folder = scores_folder(self.folder, step)
        example = score_and_show(self.model, name, ORDER[:step], test, self.config, folder)
        return example if step == len(ORDER) else None


def demo(
    folder: Path, preset: str = "demo", cases: int = 24, held_out: int | None = 3, seed: int = 0
) -> Path:
    """Learn four phantom datasets in `folder`, write `folder`/report.html and return its path."""
    started, fresh = time.monotonic(), not folder.exists()
    claim(folder, {"preset": preset, "cases": cases, "seed": seed})
    tasks = Demo(folder, preset, cases, seed)
    learn_all(tasks)
    examples = score_all(tasks, held_out)
    datasets = {name: ProtocolDataset(tasks.raw(name), anomalies(name)) for name in ORDER}
    report = run_protocol(folder, datasets, tasks.config, held_out, examples)
    report = replace(report, seconds=time.monotonic() - started if fresh else None)
    log.info("%s", report.table())
    return write_report(folder, report, commands(tasks), view_command(folder))


def learn_all(tasks: Demo) -> None:
    """Four packs, two jobs at a time; the longest of the later ones in parallel with the others."""
    first, *others, longest = ORDER
    tasks.make([first], workers=None)
    threads = torch.get_num_threads()
    take_half()
    log.info("Learning %s; the other phantoms are generated meanwhile", first)
    with beside(tasks.make, [*others, longest], start=take_half_silently):
        tasks.learn(first)
    log.info("Learning %s, and %s in parallel", " and ".join(others), longest)
    with beside(tasks.learn, longest, start=take_half_silently):
        for name in others:
            tasks.learn(name)
    torch.set_num_threads(threads)


def score_all(tasks: Demo, held_out: int | None) -> dict[str, Example]:
    """Write the scores of every step, the longest tasks first; the report reads them.

    Returns the scan to show of every dataset that was scored here. A task that fails is repeated for the
    report, where its error ends the demo.
    """
    steps = range(len(ORDER), 0, -1)
    jobs = {f"{name} {step}": (name, step) for step in steps for name in ORDER[:step]}
    outcome = for_each(tasks.score, jobs, (held_out,), workers=2, title="scoring", start=take_half_silently)
    return {example.dataset: example for example in outcome.results.values() if example}


def take_half() -> None:
    """Use half of the cores from now on."""
    torch.set_num_threads(max(1, usable_cores() // 2))


def take_half_silently() -> None:
    """The same in a parallel process, whose progress bars would overwrite those of this one."""
    keep_freed_memory()
    take_half()
    sys.stderr = io.StringIO()


def claim(folder: Path, settings: dict[str, object]) -> None:
    """Store the settings in a new folder; raise where a demo of other settings is."""
    note = folder / "demo.json"
    if note.exists() and (found := json.loads(note.read_text())) != settings:
        raise ConfigError(
            f"{folder} holds a demo with {found}, not {settings}. Choose another --out, or delete it."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(note, settings)


def anomalies(name: str) -> tuple[str, ...]:
    return ("esophageal tumour",) if DATASETS[name].tumour else ()


def commands(tasks: Demo) -> list[str]:
    """Commands for a user: the demo; then the same packs one by one, and the scores of all packs."""
    settings = ("--cases", tasks.cases, "--seed", tasks.seed, "--preset", tasks.preset)
    lines = [command("demo", "--out", tasks.folder, *settings), ""]
    for name in ORDER:
        lines += learning_commands(tasks, name)
    return lines + scoring_commands(tasks, ORDER[-1])


def learning_commands(tasks: Demo, name: str) -> list[str]:
    """From phantoms to the pack of one dataset."""
    raw, prepared, preset = dataset_folder(tasks.folder / "raw", name), tasks.prepared(name), tasks.preset
    size = ("--cases", tasks.cases_of(name), "--seed", tasks.seed)
    spacing = [f"{side:g}" for side in tasks.config.prepare.spacing_mm]
    pack = ["-m", tasks.model, "--name", name, "--iterations", tasks.updates_of(name)]
    pack += [word for kind in anomalies(name) for word in ("--anomaly", kind)]
    return [
        command("phantom", raw.parent, "--dataset", name, "--organs", "demo", *size, "--spacing", *spacing),
        command("prepare", raw, "-o", prepared, "--preset", preset),
        command("learn", prepared, "--preset", preset, *pack),
    ]


def scoring_commands(tasks: Demo, name: str) -> list[str]:
    """All packs on one dataset: every scan is segmented, the test cases alone are scored."""
    raw, segmented = dataset_folder(tasks.folder / "raw", name), tasks.folder / "segmented" / name
    scores = tasks.folder / "segmented_scores" / name
    overlap = ("--overlap", tasks.config.segment.overlap)  # as the report's scores were made
    prepared = ("--prepared", tasks.prepared(name), "--split", "test")
    return [
        command("verify", tasks.model),
        command("segment", raw / "imagesTr", "-m", tasks.model, "-o", segmented, *overlap),
        command("evaluate", segmented, raw, *prepared, "-o", scores),
    ]


def view_command(folder: Path) -> str:
    """The command that shows a demo's held-out scans, their labels and the packs."""
    return command("view", folder / EXAMPLES, "--model", folder / "model")


def command(*words: object) -> str:
    return shlex.join(["conseg", *map(str, words)])
