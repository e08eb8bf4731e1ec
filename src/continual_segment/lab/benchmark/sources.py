"""The datasets of a benchmark: the user's folders, or the phantoms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from continual_segment.config import ExperimentConfig
from continual_segment.data.raw import RawDataset
from continual_segment.errors import ConfigError
from continual_segment.lab.demo import ORDER, anomalies
from continual_segment.lab.phantom import DATASETS, dataset_folder, write_phantom
from continual_segment.lab.protocol import ProtocolDataset


def raw_datasets(
    folders: Sequence[Path], anomalies_of: Mapping[str, Sequence[str]] | None = None
) -> dict[str, ProtocolDataset]:
    """Datasets by the names of their folders, without nnU-Net's number.

    `anomalies_of`: kinds of disease by such names; the phantoms' own are known.
    """
    anomalies_of = dict(anomalies_of or {})
    found: dict[str, ProtocolDataset] = {}
    for folder in folders:
        name = re.sub(r"^Dataset\d+_", "", folder.resolve().name)
        if name in found:
            raise ConfigError(f"Two of the datasets are called '{name}'. Rename one of their folders.")
        known = anomalies(name) if name in DATASETS else ()
        found[name] = ProtocolDataset(RawDataset.open(folder), anomalies_of.pop(name, known))
    if anomalies_of:
        raise ConfigError(
            f"An anomaly is given for '{next(iter(anomalies_of))}', which is not among the datasets: "
            f"{', '.join(found)}."
        )
    return found


def phantom_datasets(
    folder: Path, cases: int, config: ExperimentConfig, few_organs: bool
) -> dict[str, ProtocolDataset]:
    """The four phantoms; those that do not exist yet are written."""
    for name in ORDER:
        if not (dataset_folder(folder, name) / "dataset.json").exists():
            spacing_mm = config.prepare.spacing_mm
            write_phantom(folder, name, cases, 0, spacing_mm, organs="demo" if few_organs else "all")
    return raw_datasets([dataset_folder(folder, name) for name in ORDER])
