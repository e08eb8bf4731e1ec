"""NetworkMethod: methods that train a network in every step, with the same loop, patches and budget.

A method defines what is trained and the loss of a batch; the rest is here. No method reads a scan of an
earlier dataset.

In:  the model after the step before, a prepared dataset
Out: a model folder
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from continual_segment.data.augment import AugmentConfig
from continual_segment.data.patches import PatchConfig, Patches
from continual_segment.data.prepared import PreparedDataset
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.first_step import FIRST_STEP, first_step_of
from continual_segment.lab.baselines.marginal import grown
from continual_segment.lab.baselines.method import ContinualMethod, LaterStep
from continual_segment.lab.baselines.state import MethodState, read_state, write_state
from continual_segment.learning.measure_pieces import pieces_for_card
from continual_segment.learning.step import delete_checkpoints, parameters_of
from continual_segment.model import Model, OrganPack
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.model.model import encoder_fingerprint
from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.organs import Organ
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.training.distributed import on_main
from continual_segment.training.objective import LossOfBatch
from continual_segment.training.validate import patch_dice


@dataclass(frozen=True)
class StepSettings:
    """What every method trains with."""

    patches: PatchConfig
    augment: AugmentConfig
    train: TrainConfig

    @classmethod
    def of(cls, step: LaterStep) -> StepSettings:
        """The same patches as in a later step of `learn`."""
        patches = step.config.patches.of_later_step(step.config.patches.size)
        return cls(patches, step.config.augment, step.train)


@dataclass(frozen=True, eq=False)
class LearningStep:
    """What a method can read in a step."""

    previous: SegmentationNetwork
    """The network after the step before, frozen: the teacher."""
    classes: StepClasses
    dataset: PreparedDataset
    settings: StepSettings
    state: MethodState = field(default_factory=dict)
    """What the method stored after the step before."""

    @property
    def train(self) -> TrainConfig:
        return self.settings.train

    def training_batches(self) -> Patches:
        return training_batches(self.dataset, self.settings)

    def grown_network(self) -> SegmentationNetwork:
        """The previous network with channels for the new organs, free to change: the student."""
        student = self.previous.trainable_copy()
        student.decoder = grown(self.previous.decoder, len(self.classes.new))
        return student.to(self.train.device)

    def fresh_network(self, encoder: GeneralEncoder) -> SegmentationNetwork:
        """An encoder with a new decoder for the dataset's own organs."""
        decoder = Decoder(encoder.config, self.previous.decoder.plan, len(self.dataset.organs))
        return SegmentationNetwork(encoder, decoder).to(self.train.device)


@dataclass(frozen=True, eq=False)
class Learner:
    """What a method trains in a step."""

    network: SegmentationNetwork
    organs: tuple[Organ, ...]
    """Of its channels 1, 2, ..."""
    loss: LossOfBatch
    trained: nn.Module | None = None
    """What the optimiser and the checkpoint contain; None: the whole network."""
    finish: Callable[[], MethodState] = dict
    """Called once after training, before the network is stored; returns the method's state."""

    def objective(self) -> Objective:
        """What the training loop runs."""
        return Objective(self.loss, trained=self.network if self.trained is None else self.trained)


class NetworkMethod(ContinualMethod):
    """A method that trains an encoder and decoder in every step, starting from the first step's network."""

    @abstractmethod
    def begin(self, step: LearningStep) -> Learner:
        """The network to train in this step, its organs and the loss of a batch."""

    def learn(self, step: LaterStep) -> None:
        settings, state = StepSettings.of(step), read_state(step.state)
        learn_step(self, step.previous, step.dataset, step.folder, settings, step.name, state)


def learn_step(
    method: NetworkMethod,
    previous: Path,
    dataset: PreparedDataset,
    folder: Path,
    settings: StepSettings,
    name: str,
    state: MethodState | None = None,
) -> Model:
    """Learn one dataset after the model `previous`; the model in `folder` appears once it is complete.

    The pack that is added, or that holds all organs, is called `name`. `state` is the method's state after
    the step before; None: what is stored beside `previous`. A stopped run resumes.
    """
    if folder.exists():
        return Model.open(folder)
    dataset = dataset.learnable()
    before = Model.open(previous)
    largest = largest_pack(before)
    teacher = SegmentationNetwork(before.load_encoder(), largest.decoder()).freeze().to(settings.train.device)
    classes = StepClasses.of(largest.organs if method.keeps == "one network" else (), dataset.organs)
    step = LearningStep(teacher, classes, dataset, settings, read_state(previous) if state is None else state)
    run = folder.with_name(f"{folder.name}.runs") / name
    torch.manual_seed(settings.train.seed)
    learner = method.begin(step)
    learner = replace(learner, loss=checked(learner.loss, classes))
    learner.network.to(settings.train.device)
    rows = train(
        TrainingRun(
            learner.objective().to(settings.train.device),
            step.training_batches(),
            settings.train,
            run,
            signature=signature_of(method, step),
            title=f"{type(method).__name__} learns {name}",
            validate=(lambda: validation_dice(learner, step)) if settings.train.validation_batches else None,
        )
    )
    new_state = learner.finish()
    earlier = largest.pieces if method.keeps == "one network" else {}
    card = training_card(method, step, learner, rows[-1]) | {FIRST_STEP: first_step_of(before)}
    kept = [before.pack(pack) for pack in before.pack_names] if method.keeps == "old decoders" else []

    def store() -> None:
        write_state(folder, new_state)
        write_model(folder, learner, dataset, settings, name, card | pieces_for_card(dataset, earlier), kept)
        delete_checkpoints(run)

    on_main(store)
    return Model.open(folder)


def checked(loss: LossOfBatch, classes: StepClasses) -> LossOfBatch:
    """The same loss; raises on labels that the dataset does not have."""

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        classes.check(labels)
        return loss(images, labels)

    return loss_of


def training_batches(dataset: PreparedDataset, settings: StepSettings) -> Patches:
    train = settings.train
    return Patches(dataset, "train", settings.patches, settings.augment, train.seed, train.iterations)


def validation_dice(learner: Learner, step: LearningStep) -> float:
    """Dice of the dataset's own organs: no older dataset is available in this step."""
    train = step.train
    number = {organ.name: channel for channel, organ in enumerate(learner.organs, start=1)}
    labelled = [number[organ.name] for organ in step.dataset.organs]
    others = [channel for channel in range(len(learner.organs) + 1) if channel not in labelled]

    def segment(images: Tensor) -> Tensor:
        logits = learner.network(images)
        return torch.cat((logits[:, others].amax(1, keepdim=True), logits[:, labelled]), dim=1)

    patches = Patches(
        step.dataset, "validation", step.settings.patches, None, train.seed, train.validation_batches
    )
    learner.network.eval()
    found = patch_dice(segment, patches, train.validation_batches, len(labelled), train.device)
    learner.network.train()
    return found


def signature_of(method: NetworkMethod, step: LearningStep) -> str:
    """Changes with anything that changes the final weights of a run."""
    return fingerprint_data(
        {
            "method": describe(method),
            "start": fingerprint_tensors(step.previous.state_dict()),
            "state": fingerprint_tensors(dict(step.state)),
            "organs": [organ.name for organ in step.classes.organs],
            "patches": asdict(step.settings.patches),
            "augment": asdict(step.settings.augment),
            "train": step.train.settings,
            "data": step.dataset.fingerprint,
        }
    )


def describe(method: NetworkMethod) -> dict[str, Any]:
    assert is_dataclass(method)
    assert not isinstance(method, type)
    return {"name": type(method).__name__, **asdict(method)}


def training_card(
    method: NetworkMethod, step: LearningStep, learner: Learner, last: Mapping[str, float]
) -> dict[str, Any]:
    decoder = learner.network.decoder
    return {
        "method": describe(method),
        "dataset": step.dataset.name,
        "patches": asdict(step.settings.patches),
        "augment": asdict(step.settings.augment),
        "train": step.train.settings,
        "seconds": {"train": last["seconds"]},
        "decoder_parameters": parameters_of(decoder),
    }


def write_model(
    folder: Path,
    learner: Learner,
    dataset: PreparedDataset,
    settings: StepSettings,
    name: str,
    card: dict[str, Any],
    kept: Sequence[OrganPack],
) -> None:
    """A model of the network; decoders that are `kept` read the new encoder."""
    network = learner.network.cpu().freeze()
    fingerprint = encoder_fingerprint(network.encoder, dataset.config)

    def pack_of(
        its_name: str, organs: tuple[Organ, ...], decoder: Decoder, its_card: dict[str, Any]
    ) -> OrganPack:
        return OrganPack.of(its_name, organs, network.encoder, decoder, fingerprint, card=its_card)

    packs = [pack_of(name, learner.organs, network.decoder, card)]
    packs += [pack_of(old.name, old.organs, old.decoder(), old.card) for old in kept]
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)  # left by a run that was killed
    model = Model.create(building, network.encoder, dataset.config, settings.patches.size, packs[0])
    for pack in packs[1:]:
        model.add(pack)
    building.rename(folder)


def largest_pack(model: Model) -> OrganPack:
    """The pack with most organs; the only one of a network that knows all."""
    return max((model.pack(name) for name in model.pack_names), key=lambda pack: len(pack.organs))
