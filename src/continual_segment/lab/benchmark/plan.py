"""What a benchmark compares: datasets, orders, methods and how long each may train.

Orders: A is the order the datasets are given in, B swaps the second and the third, as in the paper; digits
name any other, `2134` begins with the second dataset. A method may have settings: `mib:kd_weight=100`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from continual_segment.config import ExperimentConfig
from continual_segment.errors import ConfigError
from continual_segment.lab.baselines import METHODS, Method
from continual_segment.lab.baselines.own_decoder import UpperBound
from continual_segment.lab.protocol import ProtocolDataset
from continual_segment.training import TrainConfig

Budgets = Literal["equal", "paper"]
OURS = "ours"
OWN_PACK = "ours, own pack"
ALL_METHODS = (OURS, *METHODS)


@dataclass(frozen=True, eq=False)
class Plan:
    """All that decides a benchmark's results."""

    config: ExperimentConfig
    datasets: Mapping[str, ProtocolDataset]
    """By name, in the order given."""
    orders: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]
    held_out: int | None = None
    """Scans of each test split that are segmented; None: all."""
    budgets: Budgets = "equal"
    """equal: a method's later step has as many updates as ours in all its stages, at the same rate. paper:
    a sixteenth of the first step's at half its rate, the upper bound an eighth at its full rate."""

    def __post_init__(self) -> None:
        if self.budgets not in get_args(Budgets):
            raise ConfigError(f"budgets are {' or '.join(get_args(Budgets))}, not {self.budgets!r}.")
        check_methods(self.methods)

    def training(self, method: str) -> TrainConfig:
        """How a method trains in a later step; ours, all its stages together."""
        first, later = self.config.first, self.config.later
        if self.budgets == "equal" or method == OURS:
            return with_iterations(later, later.iterations * stage_shares(self.config))
        if isinstance(make_method(method), UpperBound):
            return with_iterations(replace(later, learning_rate=first.learning_rate), first.iterations / 8)
        slow = replace(later, learning_rate=first.learning_rate / 2)
        return with_iterations(slow, first.iterations / 16)


def with_iterations(config: TrainConfig, iterations: float) -> TrainConfig:
    count = max(1, round(iterations))
    return replace(config, iterations=count, report_every=min(config.report_every, count))


def stage_shares(config: ExperimentConfig) -> float:
    """Updates of one of our later steps in all its stages, per update of its first training."""
    stages, distil, prune = config.stage.stages, config.distil, config.prune
    shares = 1.0
    if "search" in stages:
        shares += config.search.iterations_share + config.search.retrain_share
    if "prune" in stages:
        shares += distil.students_share * (1 + distil.adapt_share)
        shares += prune.candidates * prune.candidate_share + prune.fine_tune_share
    return shares


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
        if method != OURS:
            make_method(method)


def make_method(text: str) -> Method:
    """A method by name, with other settings where some are given: `plop:entropy=code:scales=1,2`."""
    name, *settings = text.split(":")
    if name not in METHODS:
        raise ConfigError(f"There is no method '{name}'. Methods: {', '.join(ALL_METHODS)}.")
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
