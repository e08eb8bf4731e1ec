"""check_preparation: an encoder learns only from scans that are prepared as its own training scans were."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import DatasetError
from continual_segment.model import Model


def check_preparation(dataset: PreparedDataset, model: Model) -> None:
    """DatasetError with both configs and the command that prepares the dataset for the model."""
    if dataset.config != model.prepare:
        raise DatasetError(
            f"{dataset.folder} was prepared with {in_words(dataset.config)}; the encoder of {model.folder} "
            f"needs {in_words(model.prepare)}. Prepare the raw dataset again with "
            f"`conseg prepare RAW --model {model.folder}`."
        )


def in_words(config: PrepareConfig) -> str:
    """Such as "spacing 5 x 1.5 x 1.5 mm and intensity window (clip_hu -1024 to 1024)"."""
    spacing = " x ".join(f"{size:g}" for size in config.spacing_mm)
    intensity = config.intensity.described()
    words = f"spacing {spacing} mm and intensity {intensity.pop('kind')}{_settings(intensity)}"
    return words + (f", as nnU-Net does{_settings(asdict(config.nnunet))}" if config.nnunet else "")


def _settings(values: dict[str, Any]) -> str:
    shown = [
        f"{name} {' to '.join(f'{end:g}' for end in value) if name == 'clip_hu' else value}"
        for name, value in values.items()
    ]
    return f" ({', '.join(shown)})" if shown else ""
