"""What a benchmark compares: datasets, orders, methods and how long each may train.

Orders: A is the order of the datasets as given, B swaps the second and the third, as in the paper; digits
name any other order, `2134` starts with the second dataset. A method can have settings: `mib:kd_weight=100`.
Every method has two more, of its later steps: `rate` multiplies their learning rate, and with several values
of `seed` one method is learned several times, and its tables show mean and spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from typing import Any, Literal, get_args, get_origin, get_type_hints

from continual_segment.config import ExperimentConfig
from continual_segment.errors import ConfigError
from continual_segment.lab.baselines import METHODS, ContinualMethod, View
from continual_segment.lab.baselines.budgets import equal_budget
from continual_segment.lab.baselines.method import Extra
from continual_segment.lab.protocol import HeldOutSplit, ProtocolDataset, check_held_out
from continual_segment.segmentation import SegmentConfig
from continual_segment.training import TrainConfig

Budgets = Literal["equal", "paper"]
SEED = "seed"
"""A setting of every method."""
RATE = "rate"
"""Another."""
MOST_DIGITS = 9
"""Of a seed."""
MOST_DATASETS = 9
"""Each has one digit in an order."""


@dataclass(frozen=True)
class Row:
    """A row of the tables: a method, and the view by which it segments."""

    method_name: str
    """With its settings."""
    method: ContinualMethod
    view: View

    @property
    def name(self) -> str:
        return self._named(self.method_name)

    @property
    def repeats(self) -> str:
        """The name without its seed: rows that have it in common are shown as one."""
        return self._named(split_seed(self.method_name)[0])

    def _named(self, method: str) -> str:
        return f"{method}, {self.view.label}" if self.view.label else method


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that determines a benchmark's results."""

    config: ExperimentConfig
    datasets: Mapping[str, ProtocolDataset]
    """By name, in the order given."""
    orders: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]
    held_out: int | None = None
    """Scans of each dataset that are segmented, at most; None: all of the split."""
    budgets: Budgets = "equal"
    """equal: a later step of every method has as many updates as all stages of `learn`, at the same rate.
    paper: what each method had in the paper."""
    clean_up: bool = False
    """Whether islands are removed from the label maps of every method before they are scored."""
    split: HeldOutSplit = "test"
    """Whose scans are scored: settings of methods are chosen on validation."""

    def __post_init__(self) -> None:
        if self.budgets not in get_args(Budgets):
            raise ConfigError(f"budgets are {' or '.join(get_args(Budgets))}, not {self.budgets!r}.")
        if self.split not in get_args(HeldOutSplit):
            raise ConfigError(f"split is {' or '.join(get_args(HeldOutSplit))}, not {self.split!r}.")
        check_held_out(self.held_out)
        check_methods(self.methods)

    @property
    def segment(self) -> SegmentConfig:
        """How held-out scans are segmented."""
        return replace(self.config.segment, keep_islands=not self.clean_up)

    @property
    def variant(self) -> str:
        """What a further scoring of the same networks is stored under; empty: test scans as they are."""
        parts = [self.split if self.split != "test" else "", "cleaned" if self.clean_up else ""]
        return "_".join(filter(None, parts))

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

    @cached_property
    def repeated(self) -> dict[str, list[str]]:
        """Names of rows that differ in nothing but their seed, by the first of them."""
        groups: dict[str, list[str]] = {}
        for row in self.rows.values():
            groups.setdefault(row.repeats, []).append(row.name)
        return {names[0]: names for names in groups.values()}

    def methods_with(self, extra: Extra) -> list[str]:
        """Methods that add such a table; of several seeds, the first."""
        first = [name for name in self._made if name in self.repeated]
        return [name for name in first if extra in self._made[name].extras]

    def config_of(self, method: str) -> ExperimentConfig:
        """The settings with the method's seed and learning rate in later steps."""
        name, seed = split_seed(method)
        _, rate = split_rate(name)
        later = self.config.later
        learning_rate = later.learning_rate * rate
        return replace(self.config, later=replace(later, seed=later.seed + seed, learning_rate=learning_rate))

    def training(self, method: str) -> TrainConfig:
        """How a method trains in a later step, all its stages together."""
        config = self.config_of(method)
        if self.budgets == "equal":
            return equal_budget(config)
        return make_method(method).paper_budget(config)


def make_orders(names: Sequence[str], wanted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Orders by their names: A, B or digits."""
    count = len(names)
    if count > MOST_DATASETS:
        raise ConfigError(f"A benchmark learns at most {MOST_DATASETS} datasets, not {count}.")
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
    """Raise where one is unknown, or two are the same."""
    found: dict[tuple[frozenset[str], int], str] = {}
    for method in methods:
        make_method(method)
        settings, seed = split_seed(method)
        before = found.setdefault((frozenset(settings.split(":")), seed), method)
        if before is not method:
            raise ConfigError(f"'{before}' and '{method}' are the same training. Leave one of them out.")


def with_seeds(methods: Sequence[str], seeds: int) -> list[str]:
    """Every method with so many seeds; all methods with one seed before the next."""
    if not methods:
        raise ConfigError(f"A benchmark compares at least one method. Methods: {', '.join(METHODS)}.")
    if seeds < 1:
        raise ConfigError(f"A benchmark has at least one seed, not {seeds}.")
    for method in methods if seeds > 1 else ():
        if split_seed(method)[0] != method:
            raise ConfigError(f"'{method}' has a seed. Leave it or --seeds out.")
    return [*methods, *(f"{method}:{SEED}={seed}" for seed in range(1, seeds) for method in methods)]


def split_seed(text: str) -> tuple[str, int]:
    """A method without its seed, and the seed; without one, 0."""
    others, seeds = split_setting(text, SEED)
    if len(seeds) > 1 or not all(seed.isdecimal() and len(seed) <= MOST_DIGITS for seed in seeds):
        name = text.partition(":")[0]
        raise ConfigError(f"{name}: {SEED} is one whole number from 0, not {' and '.join(map(repr, seeds))}.")
    return others, int(seeds[0]) if seeds else 0


def split_rate(text: str) -> tuple[str, float]:
    """A method without the factor of its learning rate, and the factor; without one, 1."""
    others, rates = split_setting(text, RATE)
    try:
        (rate,) = map(float, rates or ["1"])
        if not 0 < rate < inf:
            raise ValueError
    except ValueError:
        name = text.partition(":")[0]
        raise ConfigError(
            f"{name}: {RATE} is one number above 0, not {' and '.join(map(repr, rates))}."
        ) from None
    return others, rate


def split_setting(text: str, key: str) -> tuple[str, list[str]]:
    """A method without one of its settings, and the values that it has for it."""
    name, *settings = text.split(":")
    values = [setting.partition("=")[2] for setting in settings if setting.partition("=")[0] == key]
    others = [setting for setting in settings if setting.partition("=")[0] != key]
    return ":".join([name, *others]), values


def make_method(text: str) -> ContinualMethod:
    """A method by name, with other settings where some are given: `plop:entropy=code:scales=1,2`."""
    name, *settings = split_rate(split_seed(text)[0])[0].split(":")
    if name not in METHODS:
        raise ConfigError(f"There is no method '{name}'. Methods: {', '.join(METHODS)}.")
    method: Any = METHODS[name]
    known = {item.name: getattr(method, item.name) for item in fields(method)}
    types = get_type_hints(type(method))
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in known:
            own = ", ".join([*known, RATE, SEED])
            raise ConfigError(f"'{name}' has no setting '{key}'. Its settings: {own}.")
        if get_origin(types[key]) is Literal and value not in get_args(types[key]):
            raise ConfigError(f"{name}: {key} is {' or '.join(get_args(types[key]))}, not {value!r}.")
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
