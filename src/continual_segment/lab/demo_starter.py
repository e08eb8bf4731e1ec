"""demo --starter: a pack is added to the model in the package, and nothing in that model changes.

The starter knows organs of head and neck from patients, but no eyes. Phantom heads with labelled eyes become
one more pack on its frozen encoder. The proof of no forgetting needs no scan: `verify` runs every pack on the
probe, and every file is compared with that of the package.

In:  a folder, a preset for the length of training
Out: a model with one pack more, scores on held-out phantoms, report.html
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from continual_segment.config import ExperimentConfig, load_preset
from continual_segment.data.prepare import prepare
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.evaluation.report import Report, StepScores, write_report
from continual_segment.lab.demo import claim, command, view_command
from continual_segment.lab.phantom import dataset_folder, write_phantom
from continual_segment.lab.protocol import HeldOut, make_example, score
from continual_segment.learning import learn_dataset
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, Verification, verify
from continual_segment.model.starter import installed
from continual_segment.model.verify import Finding
from continual_segment.training.history import read_history

log = logging.getLogger(__name__)

DATASET = "headneck"
PACK = "eyes"
ORGANS = ("eye_left", "eye_right")
SPACING_MM = (3.0, 4.0, 4.0)
"""Nearly that of the patients behind the starter."""


@dataclass(frozen=True)
class StarterDemo:
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

    @property
    def raw(self) -> Path:
        return dataset_folder(self.folder / "raw", DATASET)

    @property
    def prepared(self) -> Path:
        return self.folder / "prepared" / PACK

    def copy_model(self) -> Model:
        """The starter, in a folder that packs can be added to."""
        return Model.open(self.model) if self.model.exists() else Model.open(installed()).copy(self.model)

    def make_scans(self, model: Model) -> tuple[RawDataset, PreparedDataset]:
        """Phantom heads, prepared as the model needs them."""
        if not (self.raw / "dataset.json").exists():  # written last
            write_phantom(self.raw.parent, DATASET, self.cases, self.seed, SPACING_MM, organs=ORGANS)
        raw = RawDataset.open(self.raw, workers=1, progress=False)
        return raw, prepare(raw, self.prepared, model.prepare, progress=False)

    def learn(self, dataset: PreparedDataset) -> None:
        if PACK not in Model.open(self.model).pack_names:
            learn_dataset(dataset, self.model, self.config, PACK)


def demo_starter(
    folder: Path, preset: str = "demo", cases: int = 16, held_out: int | None = 3, seed: int = 0
) -> Path:
    """Add a pack to a copy of the starter in `folder`, write `folder`/report.html and return its path."""
    started, fresh = time.monotonic(), not folder.exists()
    claim(folder, {"starter": True, "preset": preset, "cases": cases, "seed": seed})
    tasks = StarterDemo(folder, preset, cases, seed)
    starter = tasks.copy_model()
    raw, dataset = tasks.make_scans(starter)
    log.info("Learning %s on the frozen encoder of the starter", " and ".join(ORGANS))
    tasks.learn(dataset)
    test = HeldOut.of(raw, dataset, held_out)
    found = report(tasks, test, time.monotonic() - started if fresh else None)
    log.info("%s\n%s", found.verification, found.table())
    return write_report(folder, found, commands(tasks), view_command(folder))


def report(tasks: StarterDemo, test: HeldOut, seconds: float | None) -> Report:
    """The new pack's scores, alone and with all packs, and the proof that the others are as before."""
    model = Model.open(tasks.model)
    own, merged = score(tasks.model, PACK, model.pack_names, test, tasks.config, tasks.folder / "scores")
    return Report(
        model=tasks.model,
        steps=[StepScores(PACK, model.pack(PACK), {PACK: own}, {PACK: merged})],
        examples=[make_example(tasks.model, PACK, test, tasks.config)],
        histories={PACK: read_history(run_folder(tasks.model, PACK))},
        verification=Verification((*verify(tasks.model).findings, *unchanged(model))),
        seconds=seconds,
        earlier=Model.open(installed()).pack_names,
    )


def unchanged(model: Model) -> list[Finding]:
    """Whether each file of the package's model has the same bytes in this one."""
    starter = Model.open(installed())
    return [
        Finding(name, same, "same bytes as in the package" if same else "differs from the package")
        for name in starter.files
        for same in [(starter.folder / name).read_bytes() == (model.folder / name).read_bytes()]
    ]


def commands(tasks: StarterDemo) -> list[str]:
    """Commands for a user: the demo; then the same in single steps."""
    size = ("--cases", tasks.cases, "--seed", tasks.seed)
    spacing = [f"{side:g}" for side in SPACING_MM]
    organs = ("--organs", ",".join(ORGANS))
    segmented, overlap = tasks.folder / "segmented" / PACK, ("--overlap", tasks.config.segment.overlap)
    held_out = ("--prepared", tasks.prepared, "--split", "test")
    return [
        command("demo", "--starter", "--out", tasks.folder, *size, "--preset", tasks.preset),
        "",
        command("starter", "-o", tasks.model),
        command("phantom", tasks.raw.parent, "--dataset", DATASET, *organs, *size, "--spacing", *spacing),
        command("prepare", tasks.raw, "--model", tasks.model, "-o", tasks.prepared),
        command("learn", tasks.prepared, "-m", tasks.model, "--name", PACK, "--preset", tasks.preset),
        command("verify", tasks.model),
        command("segment", tasks.raw / "imagesTr", "-m", tasks.model, "-o", segmented, *overlap),
        command("evaluate", segmented, tasks.raw, *held_out, "-o", tasks.folder / "segmented_scores" / PACK),
    ]
