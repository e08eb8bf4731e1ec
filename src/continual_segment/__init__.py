"""Continual Segment: one frozen CT encoder, many small organ packs.

The names below are the public API. They are imported on first use, so that `import continual_segment` and
`conseg --help` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors; a test compares the two lists
    from continual_segment.api import learn as learn
    from continual_segment.body_parts import BodyPartRegressor as BodyPartRegressor
    from continual_segment.clinic.outputs import OutputConfig as OutputConfig
    from continual_segment.clinic.segment import segment as segment
    from continual_segment.config import load_preset as load_preset
    from continual_segment.data.intensity import Intensity as Intensity
    from continual_segment.data.prepare import prepare as prepare
    from continual_segment.data.prepared import PreparedDataset as PreparedDataset
    from continual_segment.data.raw import RawDataset as RawDataset
    from continual_segment.engine import EngineConfig as EngineConfig
    from continual_segment.errors import ContinualSegmentError as ContinualSegmentError
    from continual_segment.evaluation import Evaluation as Evaluation
    from continual_segment.evaluation import evaluate as evaluate
    from continual_segment.model import Model as Model
    from continual_segment.model import OrganPack as OrganPack
    from continual_segment.model import verify as verify
    from continual_segment.model.nnunet import export_nnunet as export_nnunet
    from continual_segment.model.nnunet import import_nnunet as import_nnunet
    from continual_segment.segmentation import MultiSegmenter as MultiSegmenter
    from continual_segment.segmentation import SegmentConfig as SegmentConfig
    from continual_segment.segmentation import Segmenter as Segmenter
    from continual_segment.segmentation.quantise import quantise as quantise
    from continual_segment.training import LossConfig as LossConfig
    from continual_segment.viewer.view import view as view
    from continual_segment.volume import LabelMap as LabelMap
    from continual_segment.volume import Volume as Volume

__version__ = "0.2.0"

_HOMES = {
    "BodyPartRegressor": "body_parts",
    "ContinualSegmentError": "errors",
    "EngineConfig": "engine",
    "Evaluation": "evaluation",
    "Intensity": "data.intensity",
    "LabelMap": "volume",
    "LossConfig": "training",
    "Model": "model",
    "MultiSegmenter": "segmentation",
    "OrganPack": "model",
    "OutputConfig": "clinic.outputs",
    "PreparedDataset": "data.prepared",
    "RawDataset": "data.raw",
    "SegmentConfig": "segmentation",
    "Segmenter": "segmentation",
    "Volume": "volume",
    "evaluate": "evaluation",
    "export_nnunet": "model.nnunet",
    "import_nnunet": "model.nnunet",
    "learn": "api",
    "load_preset": "config",
    "prepare": "data.prepare",
    "quantise": "segmentation.quantise",
    "segment": "clinic.segment",
    "verify": "model",
    "view": "viewer.view",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker that sees it takes every name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
