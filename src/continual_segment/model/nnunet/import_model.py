"""import_nnunet: a trained stock nnU-Net becomes a model, its organs the first pack.

Weights keep their bits, and scans are prepared as nnU-Net does. What cannot be computed the same way is
refused before anything is written.

In:  a model folder of nnU-Net, or an exported zip
Out: Model, ImportReport
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.errors import ModelError
from continual_segment.model.checks import check_name
from continual_segment.model.model import LONGEST_WINDOW, Model, check_free, encoder_fingerprint
from continual_segment.model.nnunet.conversion import network_config, prepare_config
from continual_segment.model.nnunet.model import NnunetModel
from continual_segment.model.nnunet.record import NAME, NnunetRecord
from continual_segment.model.nnunet.report import ImportReport
from continual_segment.model.pack import OrganPack
from continual_segment.model.tensor_file import DEEPEST_JSON, is_deeper
from continual_segment.names import LONGEST_NAME, printable
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig, split_nnunet_state

NAMELESS = "nnunet"
"""Name of the pack where that of the dataset has no letter or digit."""
RAS_READER = "NibabelIOWithReorient"


def import_nnunet(
    source: str | Path,
    folder: str | Path,
    configuration: str | None = None,
    fold: int | str | None = None,
    name: str | None = None,
    ras: bool = False,
    orientation: str | None = None,
) -> tuple[Model, ImportReport]:
    """Make a model of a trained nnU-Net v2; its organs become the first pack.

    source: nnU-Net's model folder, a folder above it, or a zip of `nnUNetv2_export_model_to_zip`.
    folder: the model to make; it must not exist.
    configuration: such as `3d_fullres`; needed where the source has several.
    fold: a number or `all`; left out, the first.
    name: of the pack; left out, the dataset's.
    ras: whether the network was trained on files in RAS orientation and expects every scan in it, whatever
        reader its plans name; so it is with TotalSegmentator, MOOSE and CADS.
    orientation: axis codes of all files that the network was trained on, such as LPS. Every scan is then
        turned to them; left out, it is read in the axes of its own file, as stock nnU-Net does.
    """
    folder = Path(folder)
    check_free(folder)
    if name is not None:
        check_name(name)
    stock = NnunetModel.open(source, configuration, fold)
    if ras and orientation:
        raise ModelError("ras and orientation both name the axes of the training files. Give one of them.")
    stock = turned_to_ras(stock) if ras else stock
    _check_sizes(stock)
    prepare = prepare_config(stock.preprocessing, stock.source)
    if orientation:
        prepare = turned_to(orientation, prepare, stock.preprocessing.image_reader_writer)
    encoder, decoder = _networks(stock, network_config(stock.architecture, stock.source))
    try:
        pack = OrganPack.of(
            name or pack_name(stock.training.dataset_name),
            stock.labels.organs,
            encoder,
            decoder,
            encoder_fingerprint(encoder, prepare),
            licence=stock.attribution.licence,
            card=_card(stock),
            mirror_axes=tuple(sorted(stock.mirror_axes)),
        )
        files = {NAME: _record(stock).to_bytes()}
        return Model.create(folder, encoder, prepare, stock.patch_size, pack, files), stock.report
    except ModelError as error:
        raise ModelError(f"{stock.source}: {error}") from error


def pack_name(dataset_name: str) -> str:
    """A name for the pack: `Dataset101_HNBase` becomes `HNBase`."""
    short = re.sub(r"^Dataset\d+_", "", dataset_name)
    clean = re.sub(r"[^A-Za-z0-9_.-]+", "_", short)[: LONGEST_NAME // 2]
    return clean.strip("_.-") or NAMELESS


def turned_to_ras(stock: NnunetModel) -> NnunetModel:
    """The same model with a reader that turns every scan to RAS."""
    note = f"Scans are turned to RAS; the plans name {stock.preprocessing.image_reader_writer}."
    return replace(
        stock,
        plans=stock.plans | {"image_reader_writer": RAS_READER},
        preprocessing=replace(stock.preprocessing, image_reader_writer=RAS_READER),
        report=replace(stock.report, notes=(*stock.report.notes, note)),
    )


def turned_to(orientation: str, prepare: PrepareConfig, reader: str) -> PrepareConfig:
    """The same preparation of scans that are turned to these axis codes."""
    assert prepare.nnunet is not None
    if reader.endswith("WithReorient"):
        raise ModelError(
            f"The plans name {reader}, which turns every scan to RAS: leave out the orientation."
        )
    try:
        return replace(prepare, nnunet=replace(prepare.nnunet, orientation=orientation))
    except ValueError as error:
        raise ModelError(f"The orientation {printable(orientation)!r} is not valid. {error}") from error


def _check_sizes(stock: NnunetModel) -> None:
    """Raise for what a model folder of ours could not hold."""
    if max(stock.patch_size) > LONGEST_WINDOW:
        raise ModelError(
            f"{stock.source}: patch_size {stock.patch_size}; at most {LONGEST_WINDOW} voxels along each axis "
            "were expected. Such a model cannot be imported."
        )
    if any(is_deeper(described, DEEPEST_JSON) for described in (stock.plans, stock.dataset)):
        raise ModelError(
            f"{stock.source}: plans.json or dataset.json has more than {DEEPEST_JSON} levels. Get them "
            "again, as nnU-Net wrote them."
        )


def _networks(stock: NnunetModel, network: NetworkConfig) -> tuple[GeneralEncoder, Decoder]:
    """Our networks with nnU-Net's weights."""
    encoder = network.build_encoder()
    background = not stock.labels.has_regions
    decoder = Decoder(network, DecoderPlan.nnunet(network), len(stock.labels.names), background)
    for module, weights in zip((encoder, decoder), split_nnunet_state(stock.weights), strict=True):
        _load(module, weights)
    return encoder.freeze(), decoder


def _load(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load all weights; biases of a network without them are zeros."""
    biases = {name: bias for name, bias in module.state_dict().items() if name.endswith(".bias")}
    module.load_state_dict({name: torch.zeros_like(bias) for name, bias in biases.items()} | weights)


def _card(stock: NnunetModel) -> dict[str, Any]:
    training = asdict(stock.training)
    attribution = {name: text for name, text in asdict(stock.attribution).items() if text}
    return {"nnunet": training, "attribution": attribution, "patches": {"size": stock.patch_size}}


def _record(stock: NnunetModel) -> NnunetRecord:
    return NnunetRecord(
        plans=stock.plans,
        dataset=stock.dataset,
        configuration=stock.training.configuration,
        trainer=stock.training.trainer,
        fold=stock.training.fold,
        mirror_axes=stock.mirror_axes,
    )
