"""shrink_pack: a smaller pack in place of one that a model has; shrink_packs: of several within one budget.

The pack's own decoder is the teacher, so the scans and labels that it was learned from are needed again, and
nothing else. The model does not change: the result is a pack that can replace the other.

In:  a model, names of some of its packs, the prepared dataset of each
Out: OrganPacks of the same names and organs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import DatasetError, ModelError
from continual_segment.learning.assess import AssessConfig, assess
from continual_segment.learning.learn_config import LearnConfig
from continual_segment.learning.same_preparation import check_preparation
from continual_segment.learning.shrink import ShrinkConfig, Shrinking
from continual_segment.learning.split_budget import split_budget
from continual_segment.learning.step import (
    check_comparable,
    check_splits,
    parameters_of,
    rounded,
    run_folder,
)
from continual_segment.learning.train_decoder import FrozenStep, PatchSource, StageResult
from continual_segment.model import Model, OrganPack
from continual_segment.networks import DecoderPlan, GeneralEncoder


def shrink_pack(name: str, dataset: PreparedDataset, folder: Path, config: LearnConfig) -> OrganPack:
    """Make a pack small, with the settings of a later step. Run again to resume an interrupted run."""
    (pack,) = shrink_packs({name: dataset}, folder, config)
    return pack


def shrink_packs(
    datasets: Mapping[str, PreparedDataset], folder: Path, config: LearnConfig
) -> Iterator[OrganPack]:
    """Make several packs small, each with its dataset; together they are within the budget, if there is one.

    Each gets the share with which all together are expected to lose least.
    """
    model = Model.open(folder)
    for name, dataset in datasets.items():
        check_shrinkable(model.pack(name), dataset, model)
    encoder = model.load_encoder().freeze()
    started = [
        ShrinkingPack.start(model.pack(name), datasets[name], model, encoder, config) for name in datasets
    ]
    for pack, settings in zip(started, shares(started, model, config.shrink), strict=True):
        yield pack.finish(settings)


@dataclass(frozen=True, eq=False)
class ShrinkingPack:
    """A pack on its way to a smaller one."""

    pack: OrganPack
    encoder: GeneralEncoder
    shrinking: Shrinking
    assessing: AssessConfig

    @classmethod
    def start(
        cls,
        pack: OrganPack,
        dataset: PreparedDataset,
        model: Model,
        encoder: GeneralEncoder,
        config: LearnConfig,
    ) -> ShrinkingPack:
        source = PatchSource(dataset.learnable(), config.patches.of_later_step(model.window), config.augment)
        run = run_folder(model.folder, f"{pack.name}.shrink")
        step = FrozenStep(encoder, source, config.later, run, pack.name, length_of(pack, config))
        return cls(pack, encoder, Shrinking(step, pack.decoder(), config.shrink), config.assess)

    def finish(self, config: ShrinkConfig) -> OrganPack:
        return self.packed(self.shrinking.finish(config))

    def packed(self, small: StageResult) -> OrganPack:
        """The pack with another decoder."""
        pack = self.pack
        return OrganPack.of(
            pack.name,
            pack.organs,
            self.encoder,
            small.decoder,
            pack.encoder_fingerprint,
            coverage=pack.coverage,
            anomalies=pack.anomalies,
            licence=pack.licence,
            mirror_axes=pack.mirror_axes,
            assessment=assess(self.shrinking.step, small.decoder, self.assessing),
            card=card_of(pack, small),
        )


def check_shrinkable(pack: OrganPack, dataset: PreparedDataset, model: Model) -> None:
    """Whether this pack can be made small with this dataset."""
    check_splits(dataset)
    check_preparation(dataset, model)
    if pack.regions:
        raise ModelError(f"Pack '{pack.name}' has regions that overlap; only packs of organs are made small.")
    if not is_whole(pack):
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
    check_comparable(dataset.learnable())


def length_of(pack: OrganPack, config: LearnConfig) -> float:
    """How long the pack was trained, per training of a later step: that of a first step may be longer.

    The pack's card may come from a stranger, so the preset limits it.
    """
    later = config.later.iterations
    known = pack.card.get("train")
    trained = known.get("iterations") if isinstance(known, dict) else None
    if type(trained) is not int:
        return 1.0
    return min(max(trained, later), max(config.first.iterations, later)) / later


def is_whole(pack: OrganPack) -> bool:
    """Whether its decoder is nnU-Net's."""
    return pack.plan == DecoderPlan.nnunet(pack.network)


def shares(started: list[ShrinkingPack], model: Model, config: ShrinkConfig) -> list[ShrinkConfig]:
    """The settings of each pack: with a budget, its share of what the others leave.

    Packs of whole decoders that are not made small now may be later: equal parts are left for them.
    """
    if not config.budget:
        return [config] * len(started)
    names = {each.pack.name for each in started}
    others = [model.pack(name) for name in model.pack_names if name not in names]
    waiting = sum(is_whole(pack) for pack in others)
    left = replace(config.budget, packs=1).left_by(
        [pack for pack in others if not is_whole(pack)], model.window
    )
    part = left.split(len(started) + waiting)
    least = config.smallest_plan(model.network)
    for each in started:
        part.check(least, model.network, model.window, len(each.pack.organs))
    if len(started) == 1:
        return [replace(config, budget=part)]
    now = replace(
        left, parameters=part.parameters * len(started), multiply_adds=part.multiply_adds * len(started)
    )
    budgets = split_budget([each.shrinking.expected for each in started], now)
    return [replace(config, budget=budget) for budget in budgets]


def card_of(pack: OrganPack, small: StageResult) -> dict[str, object]:
    """The card of the pack that was made small, which may come from a stranger, with what is new."""
    before = pack.card.get("seconds")
    known: dict[str, object] = {
        "shrink": small.card,
        "seconds": (before if isinstance(before, dict) else {}) | rounded({"shrink": small.seconds}),
        "decoder_parameters": parameters_of(small.decoder),
    }
    if small.rows:
        known["validation_patch_dice"] = round(small.rows[-1]["validation_dice"], 4)
    return dict(pack.card) | known
