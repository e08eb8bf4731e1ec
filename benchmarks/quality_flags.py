"""What the quality flags are worth: how many wrong organs they flag, and how many right ones.

    python benchmarks/quality_flags.py DEMO --out results/quality_flags

DEMO is the folder of a `conseg demo`. The validation and test scans of its four datasets are segmented by all
packs; organs of the truth that were found, and are not cut off by the scan, count as wrong below a Dice of
0.7. Training scans take no part. OUT gets table.md: for every flag, and for any of them, the share of wrong
and of right organs that carry it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from continual_segment.clinic.quality_flags import FlagLimits, quality_flags
from continual_segment.clinic.statistics import organ_statistics
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import write_text
from continual_segment.lab.demo import ORDER
from continual_segment.lab.phantom import dataset_folder
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.segmentation.nested import layers
from continual_segment.viewer.model_data import training_volumes

WRONG = 0.7
ANY = "any of them"


@dataclass(frozen=True)
class Judged:
    """One organ of one scan."""

    dice: float
    flags: frozenset[str]


def judged_organs(demo: Path, most: int) -> Iterator[Judged]:
    segmenter = Segmenter(Model.open(demo / "model"), config=SegmentConfig(progress=False))
    trained = training_volumes(demo / "model")
    for name in ORDER:
        raw = RawDataset.open(dataset_folder(demo / "raw", name), workers=1, progress=False)
        prepared = PreparedDataset.open(demo / "prepared" / name)
        held_out = [*prepared.case_names("validation"), *prepared.case_names("test")][:most]
        for case in (case for case in raw.cases if case.name in held_out):
            scan, truth = raw.read(case)
            found = segmenter(scan, explain=True, scores=True)
            assert found.explanation is not None
            rows = {
                row["organ"]: row
                for row in organ_statistics(scan, layers(found.labels), found.explanation.quality)
            }
            removed = {each.organ: each for each in found.removed}
            for score in score_case(case.name, found.labels, truth):
                row = rows.get(score.organ)
                if row is None or not row["volume_ml"] or not score.in_truth or row["touches_edge"]:
                    continue
                organ = next(each for each in segmenter.organs if each.name == score.organ)
                flags = quality_flags(row, trained.get(organ.id), removed.get(score.organ))
                yield Judged(score.dice, frozenset(flag.name for flag in flags))


def table(organs: list[Judged]) -> str:
    wrong = [each for each in organs if each.dice < WRONG]
    right = [each for each in organs if each.dice >= WRONG]
    lines = [
        f"{len(organs)} organs: {len(wrong)} with a Dice below {WRONG}, {len(right)} others.",
        "",
        "| flag | of wrong organs | of right organs |",
        "|---|---|---|",
    ]
    for name in [*(name for name in FlagLimits().meanings() if name != "edge"), ANY]:
        shares = [share(group, name) for group in (wrong, right)]
        lines.append(f"| {name} | {shares[0]} | {shares[1]} |")
    return "\n".join(lines) + "\n"


def share(organs: list[Judged], name: str) -> str:
    hit = sum(bool(each.flags) if name == ANY else name in each.flags for each in organs)
    return f"{hit} of {len(organs)} ({hit / max(1, len(organs)):.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("--most", type=int, default=6, metavar="N", help="scans of each dataset")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = table(list(judged_organs(args.demo, args.most)))
    write_text(args.out / "table.md", found)
    print(found)


if __name__ == "__main__":
    main()
