"""The methods of the benchmark, one file each, all of one shape: ContinualMethod."""

from importlib import import_module

from continual_segment.lab.baselines.method import ContinualMethod, FirstStep, LaterStep, View
from continual_segment.lab.baselines.step import NetworkMethod, StepSettings, learn_step
from continual_segment.lab.methods import METHODS as ENTRIES


def load_method(implementation: str) -> ContinualMethod:
    """A method with its default settings, by module and class."""
    module, name = implementation.split(".")
    method = getattr(import_module(f"{__name__}.{module}"), name)()
    assert isinstance(method, ContinualMethod), implementation
    return method


METHODS: dict[str, ContinualMethod] = {
    name: load_method(entry.implementation) for name, entry in ENTRIES.items()
}

__all__ = [
    "METHODS",
    "ContinualMethod",
    "FirstStep",
    "LaterStep",
    "NetworkMethod",
    "StepSettings",
    "View",
    "learn_step",
]
