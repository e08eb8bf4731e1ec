"""shrink_pack: a smaller pack in place of one that a model has.

The pack's own decoder is the teacher, so the scans and labels that it was learned from are needed again, and
nothing else. The model does not change: the result is a pack that can replace the other.

In:  a model, the name of one of its packs, the prepared dataset of that pack
Out: an OrganPack of the same name and organs
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import DatasetError, ModelError
from continual_segment.learning.learn_config import LearnConfig
from continual_segment.learning.same_preparation import check_preparation
from continual_segment.learning.shrink import ShrinkConfig, Shrunk, shrink_decoder
from continual_segment.learning.step import check_splits, rounded, run_folder
from continual_segment.learning.train_decoder import FrozenStep, PatchSource
from continual_segment.model import Model, OrganPack
from continual_segment.networks import DecoderPlan


def shrink_pack(name: str, dataset: PreparedDataset, folder: Path, config: LearnConfig) -> OrganPack:
    """Make a pack small, with the settings of a later step. Run again to resume an interrupted run."""
    model = Model.open(folder)
    pack = model.pack(name)
    check_shrinkable(pack, dataset, model)
    source = PatchSource(dataset.learnable(), config.patches.of_later_step(model.window), config.augment)
    encoder = model.load_encoder().freeze()
    step = FrozenStep(encoder, source, config.later, run_folder(folder, f"{name}.shrink"), name)
    small = shrink_decoder(step, pack.decoder(), shrink_settings(config.shrink, model, pack))
    return OrganPack.of(
        name,
        pack.organs,
        encoder,
        small.decoder,
        model.encoder_fingerprint,
        coverage=pack.coverage,
        anomalies=pack.anomalies,
        licence=pack.licence,
        mirror_axes=pack.mirror_axes,
        card=card_of(pack, small),
    )


def check_shrinkable(pack: OrganPack, dataset: PreparedDataset, model: Model) -> None:
    """Whether this pack can be made small with this dataset."""
    check_splits(dataset)
    check_preparation(dataset, model)
    if pack.regions:
        raise ModelError(f"Pack '{pack.name}' has regions that overlap; only packs of organs are made small.")
    if pack.plan != DecoderPlan.nnunet(pack.network):
        raise ModelError(
            f"Pack '{pack.name}' is small already: {', '.join(pack.plan.kernels)}. Give the pack that it was "
            "made of."
        )
    found, expected = ([organ.name for organ in each.organs] for each in (dataset.learnable(), pack))
    if found != expected:
        raise DatasetError(
            f"{dataset.folder} has {', '.join(found)}; pack '{pack.name}' has {', '.join(expected)}. Give "
            "the dataset that the pack was learned from."
        )


def shrink_settings(config: ShrinkConfig, model: Model, pack: OrganPack) -> ShrinkConfig:
    """A budget is for all packs of the model: the others have used a part of it."""
    if not config.budget:
        return config
    others = [model.pack(name) for name in model.pack_names if name != pack.name]
    left = config.budget.left_by(others, model.network, model.window, len(pack.organs))
    return replace(config, budget=left)


def card_of(pack: OrganPack, small: Shrunk) -> dict[str, object]:
    seconds = pack.card.get("seconds", {}) | rounded({"shrink": small.seconds})
    dice = small.rows[-1]["validation_dice"] if small.rows else pack.card["validation_patch_dice"]
    known = {"shrink": small.card, "seconds": seconds, "validation_patch_dice": round(dice, 4)}
    return dict(pack.card) | known
