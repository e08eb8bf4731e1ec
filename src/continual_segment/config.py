"""ExperimentConfig: every size and schedule of one run, and how it is read from TOML.

A preset is a TOML file of the package. A user's own file has the same form, or names a preset and holds what
differs. Each table of the file fills one dataclass, so every setting is documented beside the code that reads
it; the fields of ExperimentConfig are the tables.

In:  the name of a preset, or the path of a TOML file
Out: ExperimentConfig, or a ConfigError that names the file, the table and the setting
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.errors import ConfigError
from continual_segment.files.records import as_record, read_toml, refuse_unknown
from continual_segment.learning import LearnConfig
from continual_segment.learning.budget import Budget
from continual_segment.names import did_you_mean
from continual_segment.networks import NetworkConfig
from continual_segment.segmentation import SegmentConfig

PRESETS = ("tiny", "demo", "laptop", "paper")
LOSS_SETTINGS = ("dice_over", "balance")
"""Version 0.1 read them from [first] and [later]; now they are settings of [first.loss] and [later.loss]."""
DROPPED_TABLE = "auxiliary"
"""Of version 0.1. It set the weight of a body-part head, which changed no result."""


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(LearnConfig):
    """A preset: all that learning depends on, and how scans are prepared before and segmented after it."""

    prepare: PrepareConfig
    segment: SegmentConfig = field(default_factory=SegmentConfig)

    @property
    def learn(self) -> LearnConfig:
        """The config itself, under the name that scripts for version 0.1 use."""
        return self

    def on(self, **settings: Any) -> ExperimentConfig:
        """The same experiment with other settings of all training: device, precision, workers, ..."""
        try:
            first, later = replace(self.first, **settings), replace(self.later, **settings)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return replace(self, first=first, later=later)

    def with_stages(
        self,
        stages: Sequence[str] = (),
        budget: tuple[float, float] | tuple[float, float, int] | None = None,
        **pruning: Any,
    ) -> ExperimentConfig:
        """The same experiment with other stages, where some are given, and other settings of small decoders.

        `pruning` has fields of PruneConfig; tau and select_by also count for shrinking.
        """
        shrinking: dict[str, Any] = {name: pruning[name] for name in ("tau", "select_by") if name in pruning}
        try:
            if budget:
                shrinking["budget"] = Budget(*budget)
            stage = replace(self.stage, stages=tuple(stages)) if stages else self.stage  # type: ignore[arg-type]
            if "shrink" in stage.stages:
                return replace(self, stage=stage, shrink=replace(self.shrink, **shrinking))
            if budget:
                raise ValueError(
                    f"A budget needs the stage shrink, not {','.join(stage.stages)}: --stages train,shrink."
                )
            return replace(self, stage=stage, prune=replace(self.prune, **pruning))
        except ValueError as error:
            raise ConfigError(str(error)) from error


def load_preset(name: str | Path) -> ExperimentConfig:
    """A preset by name, or a TOML file of the same form by path."""
    if str(name) in PRESETS:
        return read_config(preset_file(str(name)))
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"'{name}' is neither a preset ({', '.join(PRESETS)}) nor a TOML file. "
            f"{did_you_mean(str(name), PRESETS)}".rstrip()
        )
    return read_config(path)


def preset_of(network: NetworkConfig) -> str | None:
    """The preset whose encoder has these sizes: that of a model; None for one with a file of its own."""
    return next((name for name in PRESETS if load_preset(name).network == network), None)


def preset_file(name: str) -> Any:
    return files("continual_segment") / "presets" / f"{name}.toml"


def read_config(path: Any) -> ExperimentConfig:
    """The config in a TOML file."""
    tables = read_tables(path)
    homes = {item.metadata.get("table", item.name): item for item in fields(ExperimentConfig)}
    if unknown := sorted(set(tables) - set(homes)):
        raise ConfigError(f"{path}: no table is called [{unknown[0]}]. Tables: {', '.join(homes)}.")
    kinds = get_type_hints(ExperimentConfig)
    filled = {
        item.name: read_table(tables.get(table), kinds[item.name], usual(item), f"{path}: [{table}]")
        for table, item in homes.items()
    }
    try:
        return ExperimentConfig(**filled)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_tables(path: Any) -> dict[str, Any]:
    """The tables of a file, laid over those of the preset it names, if it names one."""
    tables = in_todays_form(read_toml(path, dict, ConfigError, "Correct the file."))
    if "preset" not in tables:
        return tables
    if (preset := tables.pop("preset")) not in PRESETS:
        raise ConfigError(
            f"{path}: preset is one of {', '.join(PRESETS)}, not {preset!r}. "
            f"{did_you_mean(str(preset), PRESETS)}".rstrip()
        )
    return laid_over(read_tables(preset_file(preset)), tables)


def in_todays_form(tables: dict[str, Any]) -> dict[str, Any]:
    """The tables of a file for version 0.1 in today's form; others as they are."""
    moved = {
        name: {"loss": {key: table[key] for key in LOSS_SETTINGS if key in table}}
        for name, table in tables.items()
        if name in ("first", "later") and isinstance(table, dict)
    }
    kept = {
        name: {key: value for key, value in tables[name].items() if key not in LOSS_SETTINGS}
        for name in moved
    }
    known = {name: table for name, table in (tables | kept).items() if name != DROPPED_TABLE}
    return laid_over(moved, known)


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both tables in one; of settings that both have, those above count."""
    both = {
        name: laid_over(below[name], value)
        for name, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(name), dict)
    }
    return below | above | both


def usual(item: Field) -> Any:
    """The usual value of a table; None where it has to be given."""
    return None if item.default_factory is MISSING else item.default_factory()


def read_table(table: Any, kind: type, usual: Any, where: str) -> Any:
    """A dataclass with the settings of a table; what it leaves out has its usual value."""
    required = [item.name for item in fields(kind) if item.default is item.default_factory is MISSING]
    if table is None and usual is None and required:
        raise ConfigError(f"{where} is missing; it has at least {', '.join(required)}.")
    given = {} if table is None else table
    refuse_unknown(given, kind, where, ConfigError)
    below = {} if usual is None else msgspec.to_builtins(usual)
    known = ", ".join(item.name for item in fields(kind))
    return as_record(laid_over(below, given), kind, where, ConfigError, f"Its settings: {known}.")
