"""Continual Segment: one frozen CT encoder, many small organ packs.

The names below are the public API. They are imported on first use, so that `conseg --help` need not
wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "BodyPartRegressor": "body_parts",
    "Evaluation": "evaluation",
    "Intensity": "data.intensity",
    "LabelMap": "volume",
    "LossConfig": "training",
    "Model": "model",
    "OrganPack": "model",
    "OutputConfig": "clinic.outputs",
    "PreparedDataset": "data.prepared",
    "RawDataset": "data.raw",
    "Segmenter": "segmentation",
    "Volume": "volume",
    "evaluate": "evaluation",
    "learn": "api",
    "load_preset": "config",
    "prepare": "data.prepare",
    "segment": "clinic.segment",
    "verify": "model",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
