"""ExperimentConfig: every size and schedule of one run, gathered from the rooms it steers.

A preset is a TOML file of the package; a user's own file looks the same, or names a preset and holds what
differs. Each table of the file fills one dataclass, so the meaning of every key stands beside the code that
reads it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from continual_segment.body_parts import BodyPartConfig
from continual_segment.data.augment import AugmentConfig
from continual_segment.data.patches import PatchConfig
from continual_segment.data.prepared import PrepareConfig
from continual_segment.errors import ConfigError
from continual_segment.learning import LearnConfig
from continual_segment.learning.auxiliary import AuxiliaryConfig
from continual_segment.learning.distil import DistilConfig
from continual_segment.learning.prune import PruneConfig
from continual_segment.learning.search import SearchConfig
from continual_segment.learning.step import StageConfig
from continual_segment.names import did_you_mean
from continual_segment.networks import NetworkConfig
from continual_segment.segmentation import SegmentConfig
from continual_segment.training import TrainConfig

PRESETS = ("tiny", "demo", "laptop", "paper")


@dataclass(frozen=True)
class ExperimentConfig:
    """A preset."""

    prepare: PrepareConfig
    network: NetworkConfig
    patches: PatchConfig
    augment: AugmentConfig
    first: TrainConfig
    """Training in the first step."""
    later: TrainConfig
    """Training in every later step."""
    segment: SegmentConfig
    stage: StageConfig
    """Stages of every step; the table [learn]."""
    search: SearchConfig
    distil: DistilConfig
    prune: PruneConfig
    body_parts: BodyPartConfig
    """The regressor of the first step; its own tables are [body_parts.train] and so on."""
    auxiliary: AuxiliaryConfig
    """What the encoder is asked besides organs."""

    def __post_init__(self) -> None:
        self.network.check_window(self.patches.size)

    @property
    def learn(self) -> LearnConfig:
        return LearnConfig(
            self.network,
            self.patches,
            self.augment,
            self.first,
            self.later,
            self.stage,
            self.search,
            self.distil,
            self.prune,
            self.body_parts,
            self.auxiliary,
        )

    def on(self, **settings: Any) -> ExperimentConfig:
        """The same experiment with other settings of all training: device, precision, workers, ..."""
        try:
            first, later = replace(self.first, **settings), replace(self.later, **settings)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return replace(self, first=first, later=later)

    def with_stages(self, stages: Sequence[str] = (), **pruning: Any) -> ExperimentConfig:
        """The same experiment with other stages, where some are given, and other settings of pruning."""
        try:
            stage = replace(self.stage, stages=tuple(stages)) if stages else self.stage  # type: ignore[arg-type]
            return replace(self, stage=stage, prune=replace(self.prune, **pruning))
        except ValueError as error:
            raise ConfigError(str(error)) from error


def load_preset(name: str) -> ExperimentConfig:
    """A preset by name, or a TOML file of the same form by path."""
    if name in PRESETS:
        return read_config(preset_file(name))
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"'{name}' is neither a preset ({', '.join(PRESETS)}) nor a TOML file. "
            f"{did_you_mean(name, PRESETS)}".rstrip()
        )
    return read_config(path)


def preset_of(network: NetworkConfig) -> str | None:
    """The preset whose encoder has these sizes: that of a model; None for one with a file of its own."""
    return next((name for name in PRESETS if load_preset(name).network == network), None)


def preset_file(name: str) -> Any:
    return files("continual_segment") / "presets" / f"{name}.toml"


def read_tables(path: Any) -> dict[str, Any]:
    """The tables of a file, laid over those of the preset it names, if it names one."""
    try:
        tables = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML ({error}).") from error
    if "preset" not in tables:
        return tables
    if (preset := tables.pop("preset")) not in PRESETS:
        raise ConfigError(
            f"{path}: preset is one of {', '.join(PRESETS)}, not {preset!r}. "
            f"{did_you_mean(str(preset), PRESETS)}".rstrip()
        )
    return laid_over(read_tables(preset_file(preset)), tables)


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both tables in one; of settings that both have, those above count."""
    both = {
        name: laid_over(below[name], value)
        for name, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(name), dict)
    }
    return below | above | both


def read_config(path: Any) -> ExperimentConfig:
    tables = read_tables(path)
    rooms = {
        "prepare": PrepareConfig,
        "network": NetworkConfig,
        "patches": PatchConfig,
        "augment": AugmentConfig,
        "first": TrainConfig,
        "later": TrainConfig,
        "segment": SegmentConfig,
        "learn": StageConfig,
        "search": SearchConfig,
        "distil": DistilConfig,
        "prune": PruneConfig,
        "body_parts": BodyPartConfig,
        "auxiliary": AuxiliaryConfig,
    }
    if unknown := sorted(set(tables) - set(rooms)):
        raise ConfigError(f"{path}: no table is called [{unknown[0]}]. Tables: {', '.join(rooms)}.")
    if missing := [
        name for name in ("prepare", "network", "patches", "first", "later") if name not in tables
    ]:
        raise ConfigError(f"{path}: the table [{missing[0]}] is missing.")
    filled = {name: fill(room, tables.get(name, {}), f"{path}: [{name}]") for name, room in rooms.items()}
    filled["stage"] = filled.pop("learn")
    try:
        return ExperimentConfig(**filled)
    except ValueError as error:
        raise ConfigError(f"{path}: [patches] and [network] do not fit. {error}") from error


def fill(room: Any, table: dict[str, Any], where: str) -> Any:
    """A dataclass, or one like a given one, with the table's values.

    Lists become tuples, and a table within a table fills the dataclass that is the setting's usual value.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is a table of settings, not {table!r}.")
    known = [item.name for item in fields(room)]
    if unknown := sorted(set(table) - set(known)):
        raise ConfigError(f"{where} has no setting '{unknown[0]}'. Its settings: {', '.join(known)}.")
    try:
        inner = {
            name: fill(getattr(room(), name), value, f"{where[:-1]}.{name}]")
            for name, value in table.items()
            if isinstance(value, dict)
        }
        values = {name: as_tuple(value) for name, value in table.items()} | inner
        return room(**values) if isinstance(room, type) else replace(room, **values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def as_tuple(value: Any) -> Any:
    return tuple(as_tuple(item) for item in value) if isinstance(value, list) else value
