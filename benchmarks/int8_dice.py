"""What int8 costs in Dice and saves in time, on the test scans of a model's datasets.

    conseg demo --out DEMO
    python benchmarks/int8_dice.py DEMO > results/performance/int8_dice.md

Any folder with model/ and raw/, where the names of datasets end with those of their packs, takes the place of
DEMO, such as that of benchmarks/starter.py.

The networks are calibrated on training scans; each pack then segments all test scans of its dataset, in
float32 (eager) and in int8 in turn, in one thread. Shown: Dice of both per dataset and per organ, their
difference in points, the labels that differ, and CPU seconds of the networks and of everything.

The model is copied, so nothing is written to DEMO. On a CPU without VNNI, OpenVINO computes the same int8
networks with older instructions, which is slower; the table says which it was.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from overlap_dice import held_out

from continual_segment.data.splits import split_cases
from continual_segment.malloc import keep_freed_memory
from continual_segment.metrics import score_labels
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter, int8
from continual_segment.segmentation.quantise import QuantiseConfig, quantise

BACKENDS = ("eager", "int8")
ALL = 10**6


@dataclass
class Found:
    """Of one backend on one dataset."""

    dice: dict[tuple[int, str], float] = field(default_factory=dict)
    """By scan and organ."""
    maps: list[np.ndarray] = field(default_factory=list)
    seconds: float = 0.0
    of_networks: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path, help="folder with model/ and raw/")
    parser.add_argument("--scans", type=int, default=ALL, help="test scans of each dataset (default: all)")
    parser.add_argument(
        "--calibrate", type=int, default=2, help="training scans of each dataset (default: 2)"
    )
    parser.add_argument("--windows", type=int, default=QuantiseConfig.windows)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    vnni = int8.has_vnni()
    int8.has_vnni = lambda: True  # measured also where `conseg segment` falls back
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(args.demo / "model", Path(folder) / "model")
        model = Model.open(Path(folder) / "model")
        datasets = sorted((args.demo / "raw").iterdir())
        scans = [scan for each in datasets for scan in training_scans(each, args.calibrate)]
        begun = time.process_time()
        quantise(model, scans, QuantiseConfig(windows=args.windows))
        seconds, machine = time.process_time() - begun, "with" if vnni else "without"
        print(
            f"Calibrated on {args.windows} windows of {len(scans)} training scans in {seconds:.0f} CPU "
            f"seconds; {machine} VNNI; one thread.\n"
        )
        packs = {each: pack_of(model, each) for each in datasets}
        show({pack: compare(model, pack, each, args.scans) for each, pack in packs.items()})


def pack_of(model: Model, folder: Path) -> str:
    return next(name for name in model.pack_names if folder.name.endswith(name))


def training_scans(folder: Path, count: int) -> list[Path]:
    paths = {path.name.removesuffix("_0000.nii.gz"): path for path in (folder / "imagesTr").glob("*.nii.gz")}
    splits = split_cases(sorted(paths))
    return [paths[name] for name in sorted(paths) if splits[name] == "train"][:count]


def compare(model: Model, pack: str, folder: Path, scans: int) -> dict[str, Found]:
    """Both backends on the test scans of a pack's dataset, scan by scan in turn."""
    found = {backend: Found() for backend in BACKENDS}
    segmenters = {
        backend: Segmenter(model, packs=[pack], config=SegmentConfig(backend=backend, progress=False))
        for backend in BACKENDS
    }
    for backend, segmenter in segmenters.items():
        assert segmenter.engine.backend == backend
        assert set(segmenter.engine.quantised) == ({"encoder", pack} if backend == "int8" else set())
        time_networks(segmenter, found[backend])
    for number, (scan, truth) in enumerate(held_out(folder, scans)):
        for backend, segmenter in segmenters.items():
            begun = time.process_time()
            labels = segmenter(scan).labels
            found[backend].seconds += time.process_time() - begun
            found[backend].maps.append(labels.voxels)
            organs = [int(organ) for organ in np.unique(truth.voxels) if organ]
            scored = score_labels(labels.voxels, truth.voxels, organs, scan.grid.spacing_mm)
            found[backend].dice |= {(number, labels.names[organ]): s.dice for organ, s in scored.items()}
    return found


def time_networks(segmenter: Segmenter, found: Found) -> None:
    """Add CPU seconds of encoder and decoders to `found` from now on."""

    def timed(network: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(given: Any) -> Any:
            begun = time.process_time()
            output = network(given)
            found.of_networks += time.process_time() - begun
            return output

        return run

    segmenter.encode = timed(segmenter.encode)
    for pack in segmenter.packs:
        pack.decode = timed(pack.decode)


def show(found: dict[str, dict[str, Found]]) -> None:
    print(
        "| dataset | scans | organs in scans | Dice float32 | Dice int8 | points | labels that differ |",
        end="",
    )
    print(" CPU s of networks, float32 / int8 | CPU s in all |\n" + "|---" * 9 + "|")
    for name, (base, other) in pairs(found):
        differ = sum(int((a != b).sum()) for a, b in zip(base.maps, other.maps, strict=True))
        voxels = sum(each.size for each in base.maps)
        print(
            f"| {name} | {len(base.maps)} | {len(base.dice)} | {means(base, other)} | {differ} of {voxels} | "
            f"{times(base.of_networks, other.of_networks)} | {times(base.seconds, other.seconds)} |"
        )
    pooled = [
        np.array([value for pair in found.values() for value in pair[backend].dice.values()])
        for backend in BACKENDS
    ]
    apart = 100 * (pooled[1] - pooled[0])
    error = apart.std() / len(apart) ** 0.5
    print(f"\nAll {len(apart)} organs in scans: {apart.mean():+.3f} points, standard error {error:.3f}.\n")
    print("| dataset | organ | scans | Dice float32 | Dice int8 | points |\n" + "|---" * 6 + "|")
    for name, (base, other) in pairs(found):
        for organ in sorted({organ for _, organ in base.dice}):
            one = [
                {key: dice for key, dice in each.dice.items() if key[1] == organ} for each in (base, other)
            ]
            print(f"| {name} | {organ} | {len(one[0])} | {means(Found(one[0]), Found(one[1]))} |")


def pairs(found: dict[str, dict[str, Found]]) -> Iterator[tuple[str, tuple[Found, Found]]]:
    for name, both in found.items():
        yield name, (both["eager"], both["int8"])


def means(base: Found, other: Found) -> str:
    first, second = (float(np.mean(list(each.dice.values()))) for each in (base, other))
    return f"{first:.4f} | {second:.4f} | {100 * (second - first):+.2f}"


def times(base: float, other: float) -> str:
    return f"{base:.1f} / {other:.1f} = {base / other:.2f}"


if __name__ == "__main__":
    main()
