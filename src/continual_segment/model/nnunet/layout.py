"""Which model, and which of its folds, is read.

nnU-Net stores a trained model as `<trainer>__<plans>__<configuration>/fold_X/checkpoint_final.pth` beside
plans.json and dataset.json. There may be several models below one dataset or in one zip, and up to five folds
of each.

In:  names of files, and what the user asked for
Out: one model folder, one fold, one checkpoint
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from continual_segment.errors import ModelError
from continual_segment.model.nnunet.sources import ModelFiles
from continual_segment.names import printable

FINAL, BEST = "checkpoint_final.pth", "checkpoint_best.pth"
CHECKPOINT = re.compile(r"(?P<prefix>(?:.*/)?)fold_(?P<fold>[0-9]{1,9}|all)/(?P<name>[^/]+)")


class FoldFile(NamedTuple):
    """A checkpoint and the fold it belongs to."""

    fold: str
    checkpoint: str
    name: str
    """The file, as the source of the model names it."""


@dataclass(frozen=True)
class ModelFolder:
    """One trained configuration."""

    prefix: str
    """Where its files are: empty or ending with '/'."""
    where: str
    """The folder as errors and reports show it."""
    name: str
    """`<trainer>__<plans>__<configuration>`, unless it was renamed."""
    checkpoints: Mapping[str, frozenset[str]]
    """Names of the checkpoints of every fold."""

    @property
    def folds(self) -> tuple[str, ...]:
        """Folds with a final or a best checkpoint, the numbered ones first."""
        usable = [fold for fold, names in self.checkpoints.items() if {FINAL, BEST} & names]
        return tuple(sorted(usable, key=lambda fold: (fold == "all", fold.zfill(9))))

    def may_be(self, configuration: str | None) -> bool:
        """Whether the user may mean this folder; a renamed one shows its configuration when it is read."""
        trainer_plans_configuration = self.name.split("__")
        renamed = len(trainer_plans_configuration) != 3
        return configuration in (None, self.name, trainer_plans_configuration[-1]) or renamed

    def find_fold(self, fold: int | str | None) -> FoldFile:
        """The fold of that name, the first one for None."""
        if not self.folds:
            found = ", ".join(sorted(set().union(*self.checkpoints.values())))
            raise ModelError(
                f"{self.where}: no fold has {FINAL} or {BEST}, only {printable(found)}. Finish the training "
                "with `nnUNetv2_train --c`."
            )
        asked = self.folds[0] if fold is None else str(fold).removeprefix("fold_")
        if asked not in self.folds:
            raise ModelError(
                f"{self.where} has no fold {printable(asked)} with {FINAL} or {BEST}. "
                f"Its folds: {', '.join(self.folds)}."
            )
        checkpoint = FINAL if FINAL in self.checkpoints[asked] else BEST
        return FoldFile(asked, checkpoint, f"{self.prefix}fold_{asked}/{checkpoint}")


def find_model_folder(files: ModelFiles, configuration: str | None) -> ModelFolder:
    """The one model folder that fits what the user asked for."""
    folders = _model_folders(files)
    if not folders:
        raise ModelError(
            f"{files.where('')}: no nnU-Net model found. The folder of a model, `<trainer>__<plans>__"
            "<configuration>` with plans.json and fold_X/checkpoint_final.pth, or a zip of "
            "`nnUNetv2_export_model_to_zip` was expected."
        )
    fitting = [folder for folder in folders if folder.may_be(configuration)]
    if len(fitting) != 1:
        raise ModelError(_not_one(files, configuration, folders, fitting))
    return fitting[0]


def _model_folders(files: ModelFiles) -> list[ModelFolder]:
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in files.names:
        if match := CHECKPOINT.fullmatch(name):
            found[match["prefix"]][match["fold"]].add(match["name"])
    return [_model_folder(files, prefix, folds) for prefix, folds in sorted(found.items())]


def _model_folder(files: ModelFiles, prefix: str, folds: Mapping[str, set[str]]) -> ModelFolder:
    name = prefix.rstrip("/").rpartition("/")[2] or files.root.resolve().name
    checkpoints = {fold: frozenset(names) for fold, names in folds.items()}
    return ModelFolder(prefix, files.where(prefix), name, checkpoints)


def _not_one(
    files: ModelFiles,
    configuration: str | None,
    folders: Sequence[ModelFolder],
    fitting: Sequence[ModelFolder],
) -> str:
    listed = ", ".join(folder.prefix.rstrip("/") or folder.name for folder in fitting or folders)
    asked = f" of configuration {printable(configuration)!r}" if configuration else ""
    return (
        f"{files.where('')}: {len(fitting)} models{asked}, one was expected. There are: "
        f"{printable(listed, 2000)}. Give a configuration, the name of one of these folders, or its path."
    )
