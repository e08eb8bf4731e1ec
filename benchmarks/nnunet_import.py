"""Imported models against the stock nnU-Nets they come from: labels, time and memory, side by side.

    python benchmarks/nnunet_import.py FOLDER                          # trains what is missing: half an hour
    python benchmarks/nnunet_import.py FOLDER --only Isotropic ResEnc
    python benchmarks/nnunet_import.py FOLDER --open-kbp ../shared/data/open-kbp

Small stock nnU-Nets (benchmarks/nnunet_phantoms.py) learn phantoms and are imported by `conseg import`.
With --open-kbp the model that benchmarks/nnunet_story.py trains on real scans is compared, too. Each of them
labels scans that it never saw, once by nnUNetv2_predict_from_modelfolder (CPU, step 0.5) and once by
`conseg segment`, both as whole processes with one thread; mirrored at test time, too, where the model allows
it. Training is done once: run the command again to resume.

Columns: `equal` is the share of all voxels with one label by both, in brackets the voxels that differ; `Dice`
stock nnU-Net's mean over organs and scans; `difference` the largest between the Dice of both, of any organ in
any scan; MB are those of all processes that a command starts.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measured_process import CONSEG, Measured, run_measured
from nnunet_phantoms import CONFIGURATIONS, train, unseen_scans
from nnunet_stock import StockNnunet, link, link_cases, made_once, splits_of
from nnunet_story import DATASETS, PLANS, TRAINER

from continual_segment.evaluation import score_case
from continual_segment.evaluation.label_source import open_labels
from continual_segment.organs import canonical_name
from continual_segment.volume import LabelMap

REAL = "OpenKBP"
REAL_SCANS = 3
HEAD = (
    f"{'model':<14}{'mirror':>7}{'scans':>6}{'equal':>12}{'':>9}{'Dice':>7}{'difference':>12}"
    f"{'s, stock':>10}{'ours':>7}{'x':>7}{'MB, stock':>11}{'ours':>7}"
)


@dataclass(frozen=True)
class Trained:
    """A stock model, and a raw dataset that it never saw."""

    name: str
    model: Path
    unseen: Path
    mirrors: bool


@dataclass(frozen=True)
class Agreement:
    """Two label maps of one scan, or of several."""

    voxels: int
    different: int
    dice: tuple[float, ...]
    """Of stock nnU-Net, by organ; organs that the truth lacks are left out."""
    differences: tuple[float, ...]
    """Between the Dice of both, by organ."""

    @classmethod
    def of(cls, stock: LabelMap, ours: LabelMap, truth: LabelMap) -> Agreement:
        """Organs are matched by name: nnU-Net numbers them 1, 2, ..., a model by their permanent ids."""
        both = [score_case("scan", labels, truth) for labels in (stock, ours)]
        dice = np.array([[row.dice for row in rows if row.in_truth] for rows in both])
        return cls(
            stock.voxels.size,
            int(np.count_nonzero(renumbered(ours, stock.names) != stock.voxels)),
            tuple(dice[0]),
            tuple(np.abs(dice[0] - dice[1])),
        )

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.voxels + other.voxels,
            self.different + other.different,
            self.dice + other.dice,
            self.differences + other.differences,
        )

    @property
    def equal(self) -> float:
        return 1 - self.different / self.voxels


def renumbered(labels: LabelMap, names: dict[int, str]) -> np.ndarray:
    """The voxels with the numbers that these names have; organs without one become -1."""
    numbers = {canonical_name(name): number for number, name in names.items()}
    table = np.full(max([0, *labels.names]) + 1, -1, np.int32)
    table[0] = 0
    for label, name in labels.names.items():
        table[label] = numbers.get(canonical_name(name), -1)
    return table[labels.voxels]


def trained_models(stock: StockNnunet, only: list[str], open_kbp: Path | None) -> Iterator[Trained]:
    for configuration in CONFIGURATIONS:
        if configuration.name in only:
            model = train(stock, configuration)
            unseen = unseen_scans(stock.folder, configuration)
            yield Trained(configuration.name, model, unseen, configuration.mirrors)
    if open_kbp and REAL in only:
        model = stock.model_folder(DATASETS[0], PLANS, TRAINER)
        unseen = stock.folder / "import" / f"{DATASETS[0]}_unseen"
        made_once(unseen, lambda folder: link_test_cases(folder, open_kbp / DATASETS[0]))
        yield Trained(REAL, model, unseen, mirrors=False)


def link_test_cases(folder: Path, raw: Path) -> None:
    """A raw dataset of a few test cases."""
    tests = sorted(case for case, split in splits_of(raw).items() if split == "test")
    link_cases(raw, folder, tests[:REAL_SCANS])
    link(folder / "dataset.json", raw / "dataset.json")


def compare(stock: StockNnunet, trained: Trained, mirror: bool) -> str:
    """A line of the table."""
    folder = stock.folder / "import" / trained.name
    imported = folder / "model"
    if not mirror:  # every time anew: it takes seconds, and what is compared is today's import
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run_measured([*CONSEG, "import", trained.model, "-m", imported])
    scans, suffix = trained.unseen / "imagesTr", "mirrored" if mirror else "plain"
    theirs, ours = folder / f"stock_{suffix}", folder / f"ours_{suffix}"
    taken = stock.predict(trained.model, scans, theirs, mirror=mirror), segment(imported, scans, ours, mirror)
    return line(trained, mirror, agreement(theirs, ours, trained.unseen), *taken)


def segment(model: Path, scans: Path, out: Path, mirror: bool) -> Measured:
    options = ["--overwrite", "--quiet", *(["--mirror"] if mirror else [])]
    return run_measured(
        [*CONSEG, "segment", scans, "-m", model, "-o", out, *options], {"OMP_NUM_THREADS": "1"}
    )


def agreement(stock: Path, ours: Path, truth: Path) -> Agreement:
    """Of all label maps in two folders."""
    first, second, true = open_labels(stock), open_labels(ours), open_labels(truth)
    total, *others = [
        Agreement.of(first.read(case), second.read(case), true.read(case)) for case in true.case_names
    ]
    return sum(others, start=total)


def line(trained: Trained, mirror: bool, found: Agreement, stock: Measured, ours: Measured) -> str:
    scans = len([*(trained.unseen / "labelsTr").iterdir()])
    different = f"({found.different})"
    return (
        f"{trained.name:<14}{'on' if mirror else 'off':>7}{scans:>6}{found.equal:>12.5%}{different:>9}"
        f"{np.mean(found.dice):>7.3f}{max(found.differences):>12.6f}"
        f"{stock.seconds:>10.1f}{ours.seconds:>7.1f}{stock.seconds / ours.seconds:>7.2f}"
        f"{stock.peak_bytes / 1e6:>11.0f}{ours.peak_bytes / 1e6:>7.0f}"
    )


def main() -> None:
    names = [*(configuration.name for configuration in CONFIGURATIONS), REAL]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for nnU-Net's environment, datasets, models and labels")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="compare these models alone")
    parser.add_argument("--open-kbp", type=Path, metavar="RAW", help="folder of the OpenKBP datasets")
    chosen = parser.parse_args()
    stock = StockNnunet(chosen.folder.resolve())
    print(HEAD)
    for trained in trained_models(stock, chosen.only, chosen.open_kbp):
        for mirror in (False, True) if trained.mirrors else (False,):
            print(compare(stock, trained, mirror), flush=True)


if __name__ == "__main__":
    main()
