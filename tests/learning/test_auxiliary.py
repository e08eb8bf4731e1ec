"""The body-part head that learns with the encoder."""

from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import load_file

from continual_segment.body_parts import Regions
from continual_segment.data.patches import Patches
from continual_segment.learning import learn_dataset
from continual_segment.learning.auxiliary import BodyPartQuestion, marks_of
from continual_segment.model import Model, verify
from continual_segment.networks.heads import ProjectionHead
from continual_segment.volume import Grid


def test_slices_near_a_boundary_are_not_asked_about():
    grid = Grid((12, 1, 1), np.diag([1.0, 1.0, 10.0, 1.0]))
    regions = Regions(grid, np.array([-1, *[1] * 5, *[2] * 6], np.int8), (-np.inf, 5.5, np.inf))
    assert marks_of(regions).tolist() == [0, 2, 2, 2, 2, 0, 0, 3, 3, 3, 3, 3]


def test_labels_carry_body_parts_through_augmentation_and_give_them_back(datasets, preset):
    dataset = datasets["totalseg"]
    marks = {name: np.full(dataset.case(name).shape[0], 3, np.uint8) for name in dataset.splits}
    given = (dataset, "train", preset.patches, preset.augment, 0, 4)
    question = BodyPartQuestion(None, marks, len(dataset.organs) + 1, 1.0)
    for (images, labels), (same, marked) in zip(Patches(*given), Patches(*given, marks), strict=True):
        organs, parts = question.split(marked)
        assert torch.equal(images, same)
        assert torch.equal(organs, labels)
        assert set(parts.unique().tolist()) <= {-1, 2}
        assert (parts[labels > 0] == 2).all()


def test_a_patch_that_tells_no_body_part_costs_nothing(preset):
    question = BodyPartQuestion(ProjectionHead(preset.network, 4), {}, 5, 1.0)
    features = [torch.randn(1, f, 8 // 2**i, 8, 8) for i, f in enumerate(preset.network.features)]
    assert question.loss(features, torch.full((1, 8, 8, 8), -1)) == 0
    assert question.loss(features, torch.zeros(1, 8, 8, 8, dtype=torch.int64)) > 0


def test_the_head_learns_with_the_first_step_and_later_ones_leave_it(
    datasets, preset, quick, tmp_path, contents
):
    config = quick(preset, iterations=2, report_every=2)
    asked = replace(config, auxiliary=replace(config.auxiliary, body_part_weight=0.1))
    folder = tmp_path / "model"
    learn_dataset(datasets["totalseg"], folder, asked, "base")
    head = load_file(folder / "body_part_head.safetensors")
    torch.manual_seed(0)
    assert {name: tensor.shape for name, tensor in head.items()} == {
        name: tensor.shape for name, tensor in ProjectionHead(preset.network, 4).state_dict().items()
    }
    before = contents(folder)
    learn_dataset(datasets["chest"], folder, asked, "chest")
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} == {"model.json", "packs/chest.pack"}
    assert verify(folder).good
    learn_dataset(datasets["totalseg"], tmp_path / "without", config, "base")
    one, other = (Model.open(tmp_path / name).encoder_fingerprint for name in ("model", "without"))
    assert one != other  # the encoder was asked
