"""Evaluation: the scores of one dataset as plain data, from single rows to the dataset's mean.

Means go over cases first, then over organs, so that an organ seen in few cases weighs as much as one seen in
all. A missed organ has no surface distance. It is left out of `hd95_mm` and `asd_mm`, as in the paper, and
counted; the penalised means are given, too, in which it costs the image diagonal, because leaving it out
flatters a method that finds little.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import Any

from continual_segment.errors import DatasetError
from continual_segment.evaluation.forgetting import nan_mean
from continual_segment.evaluation.splits import CaseSplits
from continual_segment.files.atomic import write_text
from continual_segment.metrics import OrganScore
from continual_segment.organs import find_organ

FORMAT = 1


@dataclass(frozen=True)
class ScoreRow:
    """One organ of one case; distances that are undefined, and what follows from them, are nan."""

    case: str
    organ: str
    dice: float
    hd95_mm: float
    asd_mm: float
    hd95_penalised_mm: float
    """The image diagonal where the organ was missed."""
    asd_penalised_mm: float
    truth_ml: float
    prediction_ml: float
    false_positive_ml: float
    """Volume predicted in a case whose truth lacks the organ; nan in all others."""

    @classmethod
    def of(cls, case: str, organ: str, score: OrganScore, diagonal_mm: float) -> ScoreRow:
        return cls(
            case,
            organ,
            score.dice,
            score.hd95_mm,
            score.asd_mm,
            *score.penalised(diagonal_mm),
            score.truth_ml,
            score.prediction_ml,
            score.false_positive_ml,
        )

    @property
    def in_truth(self) -> bool:
        return self.truth_ml > 0

    @property
    def missed(self) -> bool:
        return self.in_truth and self.prediction_ml == 0


@dataclass(frozen=True)
class ScoreMean:
    """An organ over its cases, or a group or dataset over its organs."""

    name: str
    scored: int
    """Pairs of case and organ behind the mean: those whose truth holds the organ."""
    excluded: int
    """Those of them with no voxel predicted, which have no distance."""
    dice: float
    hd95_mm: float
    """Over the pairs that are not excluded."""
    asd_mm: float
    hd95_penalised_mm: float
    """Over all pairs, an excluded one counting as the image diagonal."""
    asd_penalised_mm: float
    absent: int
    """Pairs whose truth lacks the organ."""
    false_positive_ml: float
    """Mean volume predicted in those."""


@dataclass(frozen=True)
class Evaluation:
    """The scores of one set of predictions against one dataset."""

    rows: tuple[ScoreRow, ...]
    """By case, then organ."""
    without_prediction: tuple[str, ...] = ()
    """Cases with a truth alone."""
    without_truth: tuple[str, ...] = ()
    """Cases with a prediction alone."""
    failures: tuple[str, ...] = ()
    """One sentence per case that could not be scored."""
    splits: CaseSplits = field(default_factory=CaseSplits)
    """Which split was scored, and the split of each case."""
    first_step: str = ""
    """Of a continual run: fingerprint of the encoder that its first step left. Empty: not recorded."""

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[ScoreRow],
        splits: CaseSplits | None = None,
        first_step: str = "",
        *,
        without_prediction: Sequence[str] = (),
        without_truth: Sequence[str] = (),
        failures: Sequence[str] = (),
    ) -> Evaluation:
        """Scores of any order, sorted by case and organ; splits of cases without a score are dropped."""
        ordered = tuple(sorted(rows, key=lambda row: (row.case, row.organ)))
        known = (splits or CaseSplits()).among({row.case for row in ordered})
        return cls(
            ordered, tuple(without_prediction), tuple(without_truth), tuple(failures), known, first_step
        )

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the scored cases."""
        return tuple(dict.fromkeys(row.case for row in self.rows))

    @property
    def organs(self) -> tuple[ScoreMean, ...]:
        """Every organ over its cases, by name."""
        rows: dict[str, list[ScoreRow]] = {}
        for row in self.rows:
            rows.setdefault(row.organ, []).append(row)
        return tuple(_over_cases(name, rows[name]) for name in sorted(rows))

    @property
    def groups(self) -> tuple[ScoreMean, ...]:
        """Organs that are reported together, such as ribs; organs of no group are in none."""
        members: dict[str, list[ScoreMean]] = {}
        for mean in self.organs:
            members.setdefault(find_organ(mean.name).group, []).append(mean)
        return tuple(_over_organs(name, members[name]) for name in sorted(members) if name)

    @property
    def mean(self) -> ScoreMean:
        """The whole dataset: every organ counts the same."""
        return _over_organs("mean", self.organs)

    def as_data(self) -> dict[str, Any]:
        """What `evaluation.json` holds: numbers, names and null for what is undefined."""
        return {
            "format": FORMAT,
            **self.splits.as_data(self.cases),
            **({"first_step": self.first_step} if self.first_step else {}),
            "mean": _data(self.mean),
            "organs": [_data(mean) for mean in self.organs],
            "groups": [_data(mean) for mean in self.groups],
            "rows": [_data(row) for row in self.rows],
            "without_prediction": list(self.without_prediction),
            "without_truth": list(self.without_truth),
            "failures": list(self.failures),
        }

    def to_json(self) -> str:
        """All rows and means, as in evaluation.json."""
        return json.dumps(self.as_data(), indent=1, ensure_ascii=False, allow_nan=False)

    def write(self, folder: str | Path) -> None:
        """Write scores.csv (rows), organs.csv (means) and evaluation.json (all of it, written last)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        of_case = self.splits.of_case
        rows = [{**_data(row), "split": of_case.get(row.case, "unknown")} for row in self.rows]
        write_text(folder / "scores.csv", _csv(rows))
        counts = {f"{split}_cases": count for split, count in self.splits.counts(self.cases).items()}
        split = {"split": self.splits.scored, **counts}
        kinds = {"organ": self.organs, "group": self.groups, "dataset": (self.mean,)}
        means = [{"kind": kind, **_data(mean), **split} for kind, found in kinds.items() for mean in found]
        write_text(folder / "organs.csv", _csv(means))
        write_text(folder / "evaluation.json", self.to_json() + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> Evaluation:
        """Read back what `write` wrote."""
        path = Path(folder) / "evaluation.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            rows = [_row(record) for record in data["rows"]]
            others = {k: data[k] for k in ("without_prediction", "without_truth", "failures")}
            recorded = CaseSplits.from_data(data), str(data.get("first_step", ""))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DatasetError(
                f"{path} is not an evaluation that can be read ({error}). "
                "Give a folder that `conseg evaluate -o` wrote."
            ) from error
        return cls.from_rows(rows, *recorded, **others)

    def table(self) -> str:
        """Aligned columns for the screen: organs by name, the dataset's mean last."""
        lines = [_TABLE_HEAD, *map(_table_cells, self.organs), _table_cells(self.mean)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(cells))
            for cells in (zip(line, widths, strict=True) for line in lines)
        ]
        rule = "-" * len(texts[0])
        return "\n".join([texts[0], rule, *texts[1:-1], rule, texts[-1]])


_TABLE_HEAD = (
    "organ",
    "cases",
    "DSC",
    "HD95 mm",
    "ASD mm",
    "missed",
    "HD95 penalised",
    "ASD penalised",
    "absent",
    "false positive ml",
)


def _table_cells(mean: ScoreMean) -> tuple[str, ...]:
    return (
        mean.name,
        str(mean.scored),
        _number(mean.dice, 4),
        _number(mean.hd95_mm, 2),
        _number(mean.asd_mm, 2),
        str(mean.excluded),
        _number(mean.hd95_penalised_mm, 2),
        _number(mean.asd_penalised_mm, 2),
        str(mean.absent),
        _number(mean.false_positive_ml, 2),
    )


def _number(value: float, digits: int) -> str:
    return "-" if isnan(value) else f"{value:.{digits}f}"


def _over_cases(name: str, rows: Sequence[ScoreRow]) -> ScoreMean:
    return ScoreMean(
        name=name,
        scored=sum(row.in_truth for row in rows),
        excluded=sum(row.missed for row in rows),
        absent=sum(not row.in_truth for row in rows),
        **_means(rows),
    )


def _over_organs(name: str, organs: Sequence[ScoreMean]) -> ScoreMean:
    return ScoreMean(
        name=name,
        scored=sum(organ.scored for organ in organs),
        excluded=sum(organ.excluded for organ in organs),
        absent=sum(organ.absent for organ in organs),
        **_means(organs),
    )


def _means(parts: Sequence[ScoreRow] | Sequence[ScoreMean]) -> dict[str, float]:
    fields = ("dice", "hd95_mm", "asd_mm", "hd95_penalised_mm", "asd_penalised_mm", "false_positive_ml")
    return {field: nan_mean(getattr(part, field) for part in parts) for field in fields}


def _data(part: ScoreRow | ScoreMean) -> dict[str, Any]:
    values = asdict(part)
    return {k: None if isinstance(v, float) and isnan(v) else v for k, v in values.items()}


def _row(record: dict[str, Any]) -> ScoreRow:
    values: dict[str, Any] = {k: nan if v is None else v for k, v in record.items()}
    return ScoreRow(**values)


def _csv(records: Sequence[dict[str, Any]]) -> str:
    """A spreadsheet's text: what is undefined is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
