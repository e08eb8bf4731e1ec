"""Functions of the public API that take paths and names where the packages below take objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from continual_segment.config import load_preset
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import ConfigError
from continual_segment.learning import LearnConfig, learn_dataset, learn_jointly
from continual_segment.model import OrganPack
from continual_segment.model.starter import model_folder, refuse_starter
from continual_segment.training import Loss, LossConfig
from continual_segment.training.distributed import process_group


def learn(
    dataset: PreparedDataset | str | Path,
    model: str | Path,
    preset: LearnConfig | str | Path = "laptop",
    name: str | None = None,
    licence: str = "",
    anomalies: Sequence[str] | Mapping[str, Sequence[str]] = (),
    loss: LossConfig | Loss | None = None,
    together_with: Sequence[PreparedDataset | str | Path] = (),
    tumours: Sequence[PreparedDataset | str | Path] = (),
) -> OrganPack:
    """Learn the organs of one prepared dataset: the first makes a model, every later one adds a pack.

    dataset: what `prepare` returned, or its folder.
    model: the model's folder; it is created where there is none.
    preset: the name of a preset, a TOML file, or a config.
    name: of the pack; left out, the dataset's.
    licence: text to write into the pack.
    anomalies: diseases that the training scans show; of several datasets, by the name of the dataset.
    loss: settings of nnU-Net's loss, or a function of outputs (logits, finest first) and labels; it replaces
        the preset's in every stage.
    together_with: further datasets for the encoder of a new model; each becomes a pack of its own name.
    tumours: datasets with tumour masks for the same encoder; each becomes an anomaly head of its own name.

    Run again to resume an interrupted run. In a program that torchrun starts in several processes, they learn
    together, each on its own GPU.
    """
    folder = model_folder(model)
    refuse_starter(folder)
    opened, *others = map(opened_dataset, (dataset, *together_with))
    masked = list(map(opened_dataset, tumours))
    config = preset if isinstance(preset, LearnConfig) else load_preset(preset)
    if loss is not None:
        config = config.with_loss(loss)
    if (others or masked) and name:
        raise ConfigError(
            "Datasets that are learned together become packs of their own names. Leave --name out, or learn "
            "the datasets one by one."
        )
    kinds = kinds_by_dataset(anomalies, [opened, *others])
    with process_group():
        if others or masked:
            return learn_jointly([opened, *others], folder, config, licence, masked, kinds)[0]
        return learn_dataset(opened, folder, config, name, licence, kinds.get(opened.name, ()))


def kinds_by_dataset(
    anomalies: Sequence[str] | Mapping[str, Sequence[str]], datasets: Sequence[PreparedDataset]
) -> Mapping[str, Sequence[str]]:
    """Diseases by the name of the dataset; without a name, those of the only one."""
    names = [dataset.name for dataset in datasets]
    values = anomalies.values() if isinstance(anomalies, Mapping) else (anomalies,)
    if text := next((kinds for kinds in values if isinstance(kinds, str)), ""):
        raise ConfigError(f"The diseases of a dataset are a list: [{text!r}], not {text!r}.")
    if not isinstance(anomalies, Mapping):
        if anomalies and len(names) > 1:
            raise ConfigError(
                f"Which of the datasets shows {anomalies[0]}? Name it: --anomaly '{names[0]}={anomalies[0]}'."
            )
        return {names[0]: anomalies}
    if unknown := sorted(anomalies.keys() - set(names)):
        raise ConfigError(f"No dataset is named {unknown[0]!r}; there are {', '.join(names)}.")
    return anomalies


def opened_dataset(dataset: PreparedDataset | str | Path) -> PreparedDataset:
    return dataset if isinstance(dataset, PreparedDataset) else PreparedDataset.open(dataset)
