"""OpenVINO: conversion and compilation of networks for the CPU.

OpenVINO and NNCF report their use to a server through the package `openvino_telemetry`. Nothing of a user's
work is sent from here, so that package is never loaded; both work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path
from torch import Tensor, nn

from continual_segment.errors import ConfigError

TELEMETRY = "openvino_telemetry"
Run = Callable[..., tuple[Tensor, ...]]
"""Tensors in, tensors out."""


def import_without_telemetry(name: str, backend: str) -> Any:
    """openvino or nncf; `backend` is also the name of the extra that installs it."""
    sys.modules.setdefault(TELEMETRY, None)  # type: ignore[arg-type]  # None: importing it fails
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"The backend '{backend}' needs the package {name}, which is not installed. "
            f"`pip install '.[{backend}]'` in the clone does that; --backend eager always works."
        ) from error


def convert(ov: Any, network: nn.Module, inputs: Sequence[Tensor]) -> Any:
    """A network as OpenVINO's model, for inputs of these shapes."""
    with torch.no_grad():
        return ov.convert_model(network, example_input=tuple(inputs), input=[list(x.shape) for x in inputs])


def start(ov: Any, converted: Any) -> Run:
    """A model of OpenVINO, ready to run; what it compiles is cached for the next run."""
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(cache_folder() / "openvino")})
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = core.compile_model(converted, "CPU", options)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        found = compiled([each.contiguous().numpy() for each in inputs])
        return tuple(torch.from_numpy(found[index]) for index in range(len(found)))

    return run


def cache_folder() -> Path:
    """Cache of compiled networks."""
    return user_cache_path("continual-segment", appauthor=False)
