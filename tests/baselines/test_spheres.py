"""Three spheres in three steps, all of them in every patch: who keeps the old ones?

With the whole field of view in sight, a right MiB keeps old organs and fine-tuning loses them (T50). That
the methods forget on whole-body data is then their nature and no mistake of ours.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

from continual_segment.baselines import METHODS, StepSettings
from continual_segment.baselines.classes import StepClasses
from continual_segment.baselines.step import LearningStep
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.organs import find_organ
from continual_segment.training import TrainConfig, history, supervised_loss, train

NETWORK = NetworkConfig((6, 12), ((3, 3, 3), (3, 3, 3)), ((1, 1, 1), (2, 2, 2)))
SIZE, RADIUS = 16, 3.5
BRIGHTNESS = (0.9, 0.3, -0.3)
ORGANS = tuple(map(find_organ, ("liver", "spleen", "aorta")))
SETTINGS = TrainConfig(90, 90, "adamw", 0.02, validation_batches=0)


class Spheres(Dataset):
    """Three balls of their own brightness at random places in noise; one of them, or all, labelled."""

    def __init__(self, labelled=None, seed=0):
        self.labelled, self.seed = labelled, seed

    def __len__(self):
        return SETTINGS.iterations

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(10_000 * self.seed + number)
        axis = torch.arange(SIZE).float()
        images = -1 + 0.1 * torch.randn(2, 1, SIZE, SIZE, SIZE, generator=generator)
        labels = torch.zeros(2, SIZE, SIZE, SIZE, dtype=torch.int64)
        for sample in range(2):
            for ball in torch.randperm(3, generator=generator).tolist():
                z, y, x = (4 + 8 * torch.rand(3, generator=generator)).tolist()
                distance = (axis[:, None, None] - z) ** 2 + (axis[None, :, None] - y) ** 2 + (axis - x) ** 2
                inside = distance < RADIUS**2
                images[sample, 0][inside] += 1 + BRIGHTNESS[ball]
                labels[sample][inside] = ball + 1
        if self.labelled is not None:
            labels = (labels == self.labelled + 1).long()
        return images, labels


@dataclass(frozen=True, eq=False)
class SphereStep(LearningStep):
    def training_batches(self):
        return Spheres(self.dataset.labelled, seed=self.dataset.labelled)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")


@pytest.fixture(scope="module")
def first_state(tmp_path_factory):
    """The network after the first sphere."""
    torch.manual_seed(0)
    network = new_network()
    train(
        network,
        lambda images, labels: supervised_loss(
            network.decoder.forward_supervised(network.encoder(images)), labels
        ),
        Spheres(0),
        SETTINGS,
        tmp_path_factory.mktemp("first"),
        "first",
    )
    return network.state_dict()


def new_network():
    return SegmentationNetwork(GeneralEncoder(NETWORK), Decoder(NETWORK, DecoderPlan.nnunet(NETWORK), 1))


def learn_all(method, first_state, folder):
    """The network after the second and third sphere."""
    network = new_network()
    network.load_state_dict(first_state)
    known, memory = ORGANS[:1], {}
    for number in (1, 2):
        classes = StepClasses.of(known, ORGANS[number : number + 1])
        dataset = SimpleNamespace(organs=ORGANS[number : number + 1], labelled=number)
        settings = StepSettings(None, None, SETTINGS)
        torch.manual_seed(0)
        step = SphereStep(network.freeze(), classes, dataset, settings, memory)
        learner = method.begin(step)
        train(
            learner.network if learner.trained is None else learner.trained,
            learner.loss, step.training_batches(), SETTINGS, folder / str(number), "later",
        )  # fmt: skip
        memory, network, known = learner.finish(), learner.network, classes.organs
    return network


@torch.no_grad()
def dice(network):
    """Of each sphere on patches none of the steps saw."""
    network.eval()
    overlap, both = torch.zeros(3), torch.zeros(3)
    for number in range(6):
        images, labels = Spheres(seed=99)[number]
        winner = network(images).argmax(1)
        for ball in (1, 2, 3):
            overlap[ball - 1] += 2 * ((winner == ball) & (labels == ball)).sum()
            both[ball - 1] += (winner == ball).sum() + (labels == ball).sum()
    return (overlap / both).tolist()


def test_fine_tuning_forgets_what_it_sees_as_background(first_state, tmp_path):
    old, older, new = (d := dice(learn_all(METHODS["fine-tuning"], first_state, tmp_path)))
    assert max(old, older) < 0.2
    assert new > 0.8, d


@pytest.mark.parametrize("name", ["mib", "ilt", "plop", "lismo", "rcil"])
def test_a_continual_method_keeps_what_stays_in_sight(name, first_state, tmp_path):
    found = dice(learn_all(METHODS[name], first_state, tmp_path))
    print(name, found)
    assert min(found) > 0.7
