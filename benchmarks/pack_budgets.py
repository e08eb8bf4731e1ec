"""Dice, size and time of a model's packs, made small within one or several budgets.

    python benchmarks/pack_budgets.py MODEL NAME=PREPARED=RAW ... --preset demo --budget 0.97,0.75 --out OUT

MODEL has whole decoders and does not change: a copy in OUT is worked on. For every budget all packs are
made small together, as `conseg pack shrink NAME=PREPARED ... --budget` does it. Each dataset's test split is
segmented by its whole and by its small pack; the validation windows are those that plans were chosen by. All
times are seconds of CPU of one thread, which a busy machine changes little. Shrinking is compared with the
first training, whose updates are timed here; `segment` with all whole packs and with all small ones, scan by
scan in turn. OUT gets results.json, table.md, forms.md and, of several budgets, pareto.png. Run again to
resume: what is in OUT is not measured again.

Small decoders have more updates in all than whole ones. With --control, whole ones are trained on as long as
the small ones, with themselves as teachers: what these gain is due to the updates.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from pack_budgets_report import forms, measured, pareto, table
from small_packs import dice_of

from continual_segment.cli.options import shares as budget_shares
from continual_segment.config import ExperimentConfig, load_preset
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.files import write_json, write_text
from continual_segment.lab.protocol import HeldOut
from continual_segment.learning.budget import Budget, shares_of
from continual_segment.learning.shrink_pack import ShrinkingPack, shares
from continual_segment.learning.step import whole_decoder
from continual_segment.learning.train_decoder import StageResult, train_decoder
from continual_segment.malloc import keep_freed_memory
from continual_segment.model import Model, OrganPack
from continual_segment.segmentation import Segmenter

TIMED_UPDATES = 24


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("datasets", nargs="+", metavar="NAME=PREPARED=RAW")
    parser.add_argument("--preset", default="demo")
    parser.add_argument(
        "--budget", type=budget_shares, action="append", required=True, metavar="SHARE[,SHARE]"
    )
    parser.add_argument("--scans", type=int, help="at most so many of each test split (default: all)")
    parser.add_argument("--timed", type=int, default=1, help="scans per dataset that are timed (default: 1)")
    parser.add_argument(
        "--control", action="store_true", help="train the whole decoders on as long as the small ones, too"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    bench = Bench(args.model, args.datasets, load_preset(args.preset), args.out, args.scans)
    for budget in args.budget:
        bench.measure(Budget(*budget), args.timed)
        bench.write()
        print(table(bench.results), flush=True)
    if args.control:
        bench.measure_control()
        print(table(bench.results), flush=True)


class Bench:
    """A model's packs, and what was measured of them so far."""

    def __init__(
        self, model: Path, given: Sequence[str], config: ExperimentConfig, out: Path, scans: int | None
    ) -> None:
        self.out, self.config = out, config
        self.folder = out / "model"
        if not self.folder.exists():
            shutil.copytree(model, self.folder)
        self.model = Model.open(self.folder)
        parts = [each.split("=") for each in given]
        self.prepared = {name: PreparedDataset.open(Path(prepared)) for name, prepared, _ in parts}
        self.tests = {
            name: HeldOut.of(
                RawDataset.open(Path(raw), check=False, progress=False), self.prepared[name], scans
            )
            for name, _, raw in parts
        }
        stored = out / "results.json"
        self.results: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
        self.encoder = self.model.load_encoder().freeze()
        self._started: list[ShrinkingPack] = []

    def remember(self, *path: str, compute: Callable[[], Any]) -> Any:
        """What is stored under these keys, measured where it is missing."""
        *folders, last = path
        place = self.results
        for name in folders:
            place = place.setdefault(name, {})
        if last not in place:
            place[last] = compute()
            self.write()
        return place[last]

    def measure(self, budget: Budget, timed: int) -> None:
        """All packs, small within one budget."""
        key = f"{budget.parameters:g},{budget.multiply_adds:g}"
        packs = self.small_packs(budget, key)
        for name in self.prepared:
            self.remember("whole", name, compute=lambda name=name: self.whole(name))
        for name, pack in packs.items():
            found = self.results["budgets"][key][name]
            test = self.tests[name]
            self.remember(
                "budgets", key, name, "test_dice",
                compute=lambda pack=pack, test=test: dice_of(self.folder, pack, test),
            )  # fmt: skip
            print(key, name, found, flush=True)
        self.remember("budgets", key, "segment", compute=lambda: self.times(packs, timed))

    def whole(self, name: str) -> dict[str, Any]:
        """The trained decoder of a pack, and the CPU seconds of its first training."""
        pack = self.model.pack(name)
        return {
            "organs": len(pack.organs),
            "test_scans": len(self.tests[name].cases),
            "test_dice": dice_of(self.folder, pack, self.tests[name]),
            "training_cpu_s": self.training_seconds(name),
        }

    def training_seconds(self, name: str) -> float:
        """Of a first training: the first updates of one, times their number."""
        step = self.start(name).shrinking.step
        source = step.source
        config = replace(
            self.config.later, iterations=TIMED_UPDATES, report_every=TIMED_UPDATES, validation_batches=0
        )
        decoder = whole_decoder(self.encoder, source.dataset)
        with tempfile.TemporaryDirectory() as run:
            begun = time.process_time()
            train_decoder(self.encoder, decoder, source, config, Path(run), f"timing {name}")
            seconds = time.process_time() - begun
        return seconds / TIMED_UPDATES * self.config.later.iterations * step.length

    def start(self, name: str) -> ShrinkingPack:
        return ShrinkingPack.start(
            self.model.pack(name), self.prepared[name], self.model, self.encoder, self.config
        )

    def started(self) -> list[ShrinkingPack]:
        """Every pack with fitted blocks; the seconds of that count for every budget."""
        if not self._started:
            for name in self.prepared:
                begun = time.process_time()
                pack = self.start(name)
                alone = pack.shrinking.blocks_alone
                seconds = time.process_time() - begun
                kept = self.results.setdefault("fits", {}).setdefault(name, {"cpu_s": seconds})
                kept["blocks_alone"] = [asdict(score) for score in alone]
                self._started.append(pack)
            self.write()
        return self._started

    def small_packs(self, budget: Budget, key: str) -> dict[str, OrganPack]:
        """Read where they were made before."""
        folder = self.out / "packs" / key.replace(",", "_")
        paths = {name: folder / f"{name}.pack" for name in self.prepared}
        if not all(path.exists() for path in paths.values()):
            folder.mkdir(parents=True, exist_ok=True)
            started = self.started()
            settings = shares(started, self.model, replace(self.config.shrink, budget=budget))
            for pack, config in zip(started, settings, strict=True):
                self.remember(
                    "budgets", key, pack.pack.name,
                    compute=lambda pack=pack, config=config: self.finish(pack, config, folder),
                )  # fmt: skip
        return {name: OrganPack.read(path) for name, path in paths.items()}

    def finish(self, started: ShrinkingPack, config: Any, folder: Path) -> dict[str, Any]:
        begun = time.process_time()
        pack = started.finish(config)
        seconds = time.process_time() - begun
        pack.write(folder / f"{pack.name}.pack")
        card = pack.card["shrink"]
        before = next((s["dice"] for s in card["fitted"] if s["plan"] == card["chosen"]["plan"]), None)
        sizes = shares_of(pack.plan, pack.network, self.model.window, len(pack.organs))
        return {
            "plan": list(pack.plan.kernels),
            "parameters": sizes[0],
            "multiply_adds": sizes[1],
            "cpu_s": seconds,
            "validation_whole": card["trained"]["dice"],
            "validation_fitted": before,
            "validation_trained": card["chosen"]["dice"],
        }

    def measure_control(self) -> None:
        """Every whole decoder after further training."""
        for started in self.started():
            self.remember("control", started.pack.name, compute=lambda each=started: self.control(each))
            print("control", started.pack.name, self.results["control"][started.pack.name], flush=True)

    def control(self, started: ShrinkingPack) -> dict[str, float]:
        shrinking = started.shrinking
        trained = shrinking.train(shrinking.tree.whole)
        pack = started.packed(StageResult(trained.decoder, trained.rows, {}, 0.0))
        return {
            "validation_trained": trained.score.dice,
            "test_dice": dice_of(self.folder, pack, self.tests[pack.name]),
        }

    def times(self, packs: dict[str, OrganPack], timed: int) -> dict[str, Any]:
        """CPU seconds of segmenting with all whole packs and all small ones, scan by scan in turn."""
        with tempfile.TemporaryDirectory() as folder:
            small = Path(shutil.copytree(self.folder, Path(folder) / "small"))
            for name, pack in packs.items():
                Model.open(small).remove(name).add(pack)
            segmenters = {"whole": Segmenter(self.model), "small": Segmenter(Model.open(small))}
            taken: dict[str, list[float]] = {"whole": [], "small": []}
            for test in self.tests.values():
                for case in list(test.cases)[:timed]:
                    scan, _ = test.raw.read(case)
                    for name, segmenter in segmenters.items():
                        begun = time.process_time()
                        segmenter(scan)
                        taken[name].append(time.process_time() - begun)
        ratios = [whole / little for whole, little in zip(taken["whole"], taken["small"], strict=True)]
        return taken | {"ratio": sum(taken["whole"]) / sum(taken["small"]), "ratios": ratios}

    def write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(self.out / "results.json", self.results)
        if self.results.get("budgets") and self.results.get("whole"):
            write_text(self.out / "table.md", table(self.results))
        if self.results.get("fits"):
            write_text(self.out / "forms.md", forms(self.results))
        if len(measured(self.results)) > 1:
            (self.out / "pareto.png").write_bytes(pareto(self.results))


if __name__ == "__main__":
    main()
