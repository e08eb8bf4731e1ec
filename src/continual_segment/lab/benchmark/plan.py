"""What a benchmark compares: datasets, orders, methods and how long each may train.

Orders: A is the order of the datasets as given, B swaps the second and the third, as in the paper; digits
name any other order, `2134` starts with the second dataset. A method can have settings: `mib:kd_weight=100`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from continual_segment.config import ExperimentConfig
from continual_segment.errors import ConfigError
from continual_segment.lab.baselines import METHODS, ContinualMethod, View
from continual_segment.lab.baselines.budgets import equal_budget
from continual_segment.lab.baselines.method import Extra
from continual_segment.lab.protocol import ProtocolDataset
from continual_segment.segmentation import SegmentConfig
from continual_segment.training import TrainConfig

Budgets = Literal["equal", "paper"]


@dataclass(frozen=True)
class Row:
    """A row of the tables: a method, and the view by which it segments."""

    method_name: str
    """With its settings."""
    method: ContinualMethod
    view: View

    @property
    def name(self) -> str:
        return f"{self.method_name}, {self.view.label}" if self.view.label else self.method_name


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that determines a benchmark's results."""

    config: ExperimentConfig
    datasets: Mapping[str, ProtocolDataset]
    """By name, in the order given."""
    orders: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]
    held_out: int | None = None
    """Scans of each test split that are segmented; None: all."""
    budgets: Budgets = "equal"
    """equal: a later step of every method has as many updates as all stages of `learn`, at the same rate.
    paper: what each method had in the paper."""

    def __post_init__(self) -> None:
        if self.budgets not in get_args(Budgets):
            raise ConfigError(f"budgets are {' or '.join(get_args(Budgets))}, not {self.budgets!r}.")
        check_methods(self.methods)

    @property
    def segment(self) -> SegmentConfig:
        """Without clean-up: methods are compared by what their networks find."""
        return replace(self.config.segment, keep_islands=True)

    def method(self, name: str) -> ContinualMethod:
        return self._made[name]

    @cached_property
    def _made(self) -> dict[str, ContinualMethod]:
        return {name: make_method(name) for name in self.methods}

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Rows of the tables by name: one for each view of each method."""
        rows = [Row(name, made, view) for name, made in self._made.items() for view in made.views]
        return {row.name: row for row in rows}

    def methods_with(self, extra: Extra) -> list[str]:
        """Methods that add such a table."""
        return [name for name, made in self._made.items() if extra in made.extras]

    def training(self, method: str) -> TrainConfig:
        """How a method trains in a later step, all its stages together."""
        if self.budgets == "equal":
            return equal_budget(self.config)
        return make_method(method).paper_budget(self.config)


def make_orders(names: Sequence[str], wanted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Orders by their names: A, B or digits."""
    count = len(names)
    numbers = "".join(str(number) for number in range(1, count + 1))
    known = {"A": numbers, "B": numbers[:1] + numbers[2:3] + numbers[1:2] + numbers[3:]}
    orders = {}
    for order in wanted:
        digits = known.get(order, order)
        if sorted(digits) != sorted(numbers):
            raise ConfigError(
                f"An order is A, B or each of the {count} datasets once by its number, such as "
                f"{numbers[::-1]}, not {order!r}."
            )
        orders[order] = tuple(names[int(digit) - 1] for digit in digits)
    return orders


def check_methods(methods: Sequence[str]) -> None:
    """Raise where one is unknown."""
    for method in methods:
        make_method(method)


def make_method(text: str) -> ContinualMethod:
    """A method by name, with other settings where some are given: `plop:entropy=code:scales=1,2`."""
    name, *settings = text.split(":")
    if name not in METHODS:
        raise ConfigError(f"There is no method '{name}'. Methods: {', '.join(METHODS)}.")
    method: Any = METHODS[name]
    known = {item.name: getattr(method, item.name) for item in fields(method)}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in known:
            own = ", ".join(known) or "none"
            raise ConfigError(f"'{name}' has no setting '{key}'. Its settings: {own}.")
        method = replace(method, **{key: converted(name, key, value, known[key])})
    return method


def converted(method: str, key: str, value: str, default: Any) -> Any:
    """The text in the type of the setting's default."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        if isinstance(default, tuple):
            return tuple(type(default[0])(part) for part in value.split(","))
        return type(default)(value)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{method}: {key} is like {default}, not {value!r}.") from error
