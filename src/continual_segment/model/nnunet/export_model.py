"""export_nnunet: a pack and the encoder of an imported model as a model folder of stock nnU-Net v2.

The plans are those of the imported model, so nnU-Net prepares scans as they describe; dataset.json has the
organs of the pack. Only decoders that nnU-Net itself would build can be exported.

In:  a model that was imported, the name of one of its packs
Out: <trainer>__<plans>__<configuration>/ with plans.json, dataset.json and fold_0/checkpoint_final.pth
"""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.errors import ModelError
from continual_segment.files.atomic import staged, write_text
from continual_segment.files.records import as_record
from continual_segment.model.model import RESTORE, Model
from continual_segment.model.nnunet.configuration import PlannedNetwork
from continual_segment.model.nnunet.conversion import network_config, prepare_config
from continual_segment.model.nnunet.export_dataset import dataset_json
from continual_segment.model.nnunet.layout import FINAL
from continual_segment.model.nnunet.plans import Plans, inherited
from continual_segment.model.nnunet.record import NAME, NnunetRecord
from continual_segment.model.nnunet.sources import DATASET, PLANS
from continual_segment.model.nnunet.weights import expected_shapes, stock_names
from continual_segment.model.pack import OrganPack
from continual_segment.names import check_file_name
from continual_segment.networks import DecoderPlan

log = logging.getLogger(__name__)

TRAINER, TRAINER_WITHOUT_MIRRORING = "nnUNetTrainer", "nnUNetTrainerNoMirroring"
"""Of stock nnU-Net: the trainer that trained the encoder may be another one's own."""


def export_nnunet(model: str | Path, pack: str, folder: str | Path) -> Path:
    """Write a pack of an imported model as a model folder that stock nnU-Net v2 runs; return that folder.

    model: a folder that `import_nnunet` made.
    pack: the name of one of its packs, whose decoder was neither searched nor pruned.
    folder: where to write; it must not exist, or be empty.
    """
    opened, folder = Model.open(model), Path(folder)
    _check_empty(folder)
    exported = _Export.of(opened, opened.pack(pack))
    name = check_file_name(exported.folder_name, "The nnU-Net folder", ModelError)
    with staged(folder, last=Path(name, "fold_0", FINAL)) as stage:
        (stage / name / "fold_0").mkdir(parents=True)
        # as nnU-Net writes it: four spaces, ASCII
        write_text(stage / name / PLANS, json.dumps(exported.plans, indent=4))
        write_text(stage / name / DATASET, json.dumps(exported.dataset, indent=4))
        torch.save(exported.checkpoint(), stage / name / "fold_0" / FINAL)
    return folder / name


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} exists already and is not an empty folder. Choose another name.")


@dataclass(frozen=True, eq=False)
class _Export:
    """The contents of the three files."""

    pack: OrganPack
    plans: dict[str, Any]
    dataset: dict[str, Any]
    configuration: str
    weights: dict[str, Tensor]
    """Each once."""

    @classmethod
    def of(cls, model: Model, pack: OrganPack) -> _Export:
        record, where = _record(model), str(model.folder / NAME)
        _check_plan(pack)
        planned = _planned(model, record, where)
        weights = {f"encoder.{name}": tensor for name, tensor in model.load_encoder().state_dict().items()}
        weights |= {f"decoder.{name}": tensor for name, tensor in pack.weights.items()}
        plans, expected = record.plans, expected_shapes(planned.architecture, pack.outputs)
        if any(bool(weights[name].any()) for name in weights.keys() - expected.keys()):
            plans = _with_biases(record, where)
        else:  # biases of a network that was imported without: zeros, or none at all
            weights = {name: weights[name] for name in expected}
        return cls(pack, plans, dataset_json(pack, record.dataset, where), record.configuration, weights)

    @property
    def trainer(self) -> str:
        return TRAINER if self.pack.mirror_axes else TRAINER_WITHOUT_MIRRORING

    @property
    def folder_name(self) -> str:
        return f"{self.trainer}__{self.plans['plans_name']}__{self.configuration}"

    def checkpoint(self) -> dict[str, Any]:
        """What nnU-Net reads for inference; the state of an optimizer is not in it."""
        init_args = {
            "plans": self.plans,
            "configuration": self.configuration,
            "fold": 0,
            "dataset_json": self.dataset,
            "device": torch.device("cpu"),
        }
        return {
            "network_weights": {
                name: tensor for kept, tensor in self.weights.items() for name in stock_names(kept)
            },
            "init_args": init_args,
            "trainer_name": self.trainer,
            # None, because nnU-Net fails on an empty tuple
            "inference_allowed_mirroring_axes": self.pack.mirror_axes or None,
            "current_epoch": _epochs(self.pack),
        }


def _record(model: Model) -> NnunetRecord:
    record = NnunetRecord.of_model(model)
    if record is None:
        raise ModelError(
            f"{model.folder} was not imported from nnU-Net, and nnU-Net cannot prepare scans for it. Only "
            "packs of imported models can be exported; `conseg pack export` shares this one."
        )
    return record


def _check_plan(pack: OrganPack) -> None:
    """Raise where nnU-Net would build another decoder."""
    stock = DecoderPlan.nnunet(pack.network)
    same_kernels = pack.plan.block_kernels(pack.network) == stock.block_kernels(pack.network)
    if pack.plan.has_widths or not same_kernels:
        raise ModelError(
            f"Pack '{pack.name}' has a decoder with the kernels {', '.join(pack.plan.kernels)}, deepest "
            "block first: it was made small, and nnU-Net cannot build it. Learn the pack with "
            "`--stages train` to export it."
        )


def _planned(model: Model, record: NnunetRecord, where: str) -> PlannedNetwork:
    """The network of the plans; raise where it is not the model's."""
    plans = as_record(record.plans, Plans, where, ModelError, RESTORE)
    planned = PlannedNetwork.read(plans, record.configuration, where)
    found = (
        network_config(planned.architecture, where),
        prepare_config(planned.preprocessing, where),
        planned.patch_size,
    )
    if found != (model.network, _in_own_axes(model.prepare), model.window):
        raise ModelError(
            f"{where}: the plans in it describe another network or preparation than the model's. {RESTORE}"
        )
    return planned


def _in_own_axes(prepare: PrepareConfig) -> PrepareConfig:
    """The preparation without a turn of the scan, which plans cannot express."""
    if prepare.nnunet is None or not prepare.nnunet.orientation:
        return prepare
    log.warning(
        "The model turns every scan to %s; nnU-Net does not. Give it files in that orientation.",
        prepare.nnunet.orientation,
    )
    return replace(prepare, nnunet=replace(prepare.nnunet, orientation=""))


def _with_biases(record: NnunetRecord, where: str) -> dict[str, Any]:
    """The plans for a decoder with biases, learned on the encoder of a network without them."""
    plans = deepcopy(record.plans)
    settings = inherited(as_record(plans, Plans, where, ModelError, RESTORE), record.configuration, where)
    architecture = deepcopy(settings["architecture"])
    architecture["arch_kwargs"]["conv_bias"] = True
    plans["configurations"][record.configuration]["architecture"] = architecture
    return plans


def _epochs(pack: OrganPack) -> int:
    training = pack.card.get("nnunet")
    epochs = training.get("epochs") if isinstance(training, dict) else None
    return epochs if type(epochs) is int else 0
