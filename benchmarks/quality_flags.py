"""What the quality flags are worth: how many wrong organs they flag, and how many right ones.

    python benchmarks/quality_flags.py MODEL --dataset RAW PREPARED --name NAME --out results/quality_flags
    python benchmarks/quality_flags.py --table results/quality_flags

Held-out scans of one or more datasets (--dataset, once for each) are segmented by all packs of MODEL. Of a
`conseg demo`, MODEL is DEMO/model, RAW a folder of DEMO/raw and PREPARED the one of DEMO/prepared. Organs of
the truth that were found, and are not cut off by the scan, count as wrong below a Dice of 0.7. OUT/NAME.csv
gets one row per organ and scan: Dice, and what the flags look at. Run the command again to resume. --table
writes OUT/table.md: for every flag, and for any of them, how many wrong and how many right organs carry it
by the limits of clinic/quality_flags.py, and how many would by other limits.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from continual_segment.clinic.quality_flags import FlagLimits, quality_flags
from continual_segment.clinic.statistics import organ_statistics
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import write_text
from continual_segment.model import Model
from continual_segment.model.pieces import OrganPieces
from continual_segment.model.starter import model_folder
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.segmentation.clean_up import RemovedIslands
from continual_segment.segmentation.nested import layers
from continual_segment.viewer.model_data import training_volumes
from continual_segment.volume import LabelMap, Volume

WRONG = 0.7
ANY = "any of them"
LIMITS = {
    "least_score": (0.6, 0.7, 0.8, 0.85, 0.9),
    "most_contested": (0.05, 0.1, 0.2, 0.4),
    "volume_factor": (1.0, 1.25, 1.5, 2.0),
    "most_removed": (0.05, 0.1, 0.2, 0.5),
}
"""Fields of FlagLimits, and the values that the second table compares."""


@dataclass(frozen=True)
class Judged:
    """One organ of one scan: its Dice, and what flags look at."""

    dataset: str
    case: str
    organ: str
    dice: float
    volume_ml: float
    mean_score: float
    contested_share: float
    removed_ml: float
    removed_pieces: int
    trained_scans: int
    """0: its volume was not measured in training."""
    least_ml: float
    most_ml: float

    @classmethod
    def read(cls, row: dict[str, str]) -> Judged:
        texts, numbers = ("dataset", "case", "organ"), ("removed_pieces", "trained_scans")
        return cls(
            **{
                each.name: row[each.name]
                if each.name in texts
                else (int if each.name in numbers else float)(row[each.name])
                for each in fields(cls)
            }
        )

    def flags(self, limits: FlagLimits) -> set[str]:
        row = {
            "touches_edge": (),
            "volume_ml": self.volume_ml,
            "mean_score": self.mean_score,
            "contested_share": self.contested_share,
        }
        scans, volumes = self.trained_scans, (self.least_ml, self.most_ml)
        known = OrganPieces(scans, (scans,), volumes, (1.0, 1.0), 0.0) if scans else None
        removed = RemovedIslands(self.organ, self.removed_ml, self.removed_pieces)
        return {flag.name for flag in quality_flags(row, known, removed, limits)}


def judge(
    segmenter: Segmenter,
    trained: dict[int, OrganPieces],
    dataset: str,
    case: str,
    scan: Volume,
    truth: LabelMap,
) -> Iterator[Judged]:
    found = segmenter(scan, explain=True, scores=True)
    assert found.explanation is not None
    rows = {
        row["organ"]: row for row in organ_statistics(scan, layers(found.labels), found.explanation.quality)
    }
    ids = {organ.name: organ.id for organ in segmenter.organs}
    removed = {each.organ: each for each in found.removed}
    for score in score_case(case, found.labels, truth):
        row, islands = rows.get(score.organ), removed.get(score.organ)
        if row is None or not row["volume_ml"] or not score.in_truth or row["touches_edge"]:
            continue
        known = trained.get(ids[score.organ])
        least, most = known.volume_ml if known else (0.0, 0.0)
        yield Judged(
            dataset,
            case,
            score.organ,
            round(score.dice, 4),
            round(row["volume_ml"], 2),
            round(row["mean_score"], 4),
            round(row["contested_share"], 4),
            round(islands.ml, 2) if islands else 0.0,
            islands.pieces if islands else 0,
            known.scans if known else 0,
            least,
            most,
        )


def measure(model: Path, datasets: list[tuple[Path, Path]], split: str, most: int, path: Path) -> None:
    """Append the organs of every held-out scan that the file lacks."""
    segmenter = Segmenter(Model.open(model), config=SegmentConfig(progress=False))
    trained = dict(training_volumes(model))
    done = {(row.dataset, row.case) for row in read_rows(path)}
    for raw_folder, prepared_folder in datasets:
        raw = RawDataset.open(raw_folder, workers=1, progress=False)
        held_out = PreparedDataset.open(prepared_folder).case_names(split)[:most]
        for case in raw.cases:
            if case.name in held_out and (raw_folder.name, case.name) not in done:
                append(path, list(judge(segmenter, trained, raw_folder.name, case.name, *raw.read(case))))
                print(f"{raw_folder.name} {case.name}", flush=True)


def append(path: Path, rows: list[Judged]) -> None:
    """A scan's rows at once, so that a file which was not finished lacks whole scans."""
    names, new = [each.name for each in fields(Judged)], not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows([{name: getattr(row, name) for name in names} for row in rows])


def read_rows(path: Path) -> list[Judged]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [Judged.read(row) for row in csv.DictReader(file)]


def tables(title: str, organs: list[Judged]) -> str:
    """How the flags do by the limits as they are, and the flag of each limit by others."""
    wrong = [each for each in organs if each.dice < WRONG]
    right = [each for each in organs if each.dice >= WRONG]
    scans = len({(each.dataset, each.case) for each in organs})
    lines = [
        f"## {title}",
        "",
        f"{scans} scans, {len(organs)} organs: {len(wrong)} with a Dice below {WRONG}, {len(right)} others.",
        "",
        "| flag | of wrong organs | of right organs |",
        "|---|---|---|",
    ]
    for name in [*(name for name in FlagLimits().meanings() if name != "edge"), ANY]:
        lines.append(f"| {name} | {share(wrong, name)} | {share(right, name)} |")
    lines += ["", "| limit | value | of wrong organs | of right organs |", "|---|---|---|---|"]
    for field, values in LIMITS.items():
        for value in values:
            limits = FlagLimits(**{field: value})
            name = {"least_score": "unsure", "most_contested": "contested", "most_removed": "islands"}.get(
                field, "small or large"
            )
            lines.append(
                f"| {field} | {value} | {share(wrong, name, limits)} | {share(right, name, limits)} |"
            )
    return "\n".join(lines) + "\n"


def share(organs: list[Judged], name: str, limits: FlagLimits | None = None) -> str:
    wanted = {"small", "large"} if name == "small or large" else {name}
    found = [each.flags(limits or FlagLimits()) for each in organs]
    hit = sum(bool(flags) if name == ANY else bool(flags & wanted) for flags in found)
    return f"{hit} of {len(organs)} ({hit / max(1, len(organs)):.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=model_folder, nargs="?")
    parser.add_argument(
        "--dataset", type=Path, nargs=2, action="append", default=[], metavar=("RAW", "PREPARED")
    )
    parser.add_argument("--split", default="validation", choices=("validation", "test"))
    parser.add_argument("--most", type=int, default=6, metavar="N", help="scans of each dataset")
    parser.add_argument("--name", default="demo", help="of the rows' file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="OUT", help="write OUT/table.md from the files in OUT")
    args = parser.parse_args()
    if args.table:
        parts = [tables(path.stem, read_rows(path)) for path in sorted(args.table.glob("*.csv"))]
        write_text(args.table / "table.md", "\n".join(parts))
        print("\n".join(parts))
    else:
        measure(args.model, args.dataset, args.split, args.most, args.out / f"{args.name}.csv")


if __name__ == "__main__":
    main()
