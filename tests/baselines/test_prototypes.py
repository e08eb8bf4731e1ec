"""The memory of prototypes."""

import pytest
import torch

from continual_segment.baselines.prototypes import PrototypeMemory, class_means


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, 5, 2, 2, 2, generator=generator)
    targets = torch.randint(0, 4, (2, 4, 4, 4), generator=generator)
    return features, targets


def test_the_mean_of_a_class_weighs_voxels_by_how_much_of_them_is_the_class():
    features = torch.tensor([1.0, 3.0]).reshape(1, 1, 1, 1, 2)
    targets = torch.tensor([[[[1, 1, 1, 0]]]])
    mean, weight = class_means(features, targets)[1]
    assert mean.item() == pytest.approx((1 * 1 + 3 * 0.5) / 1.5)
    assert weight.item() == pytest.approx(1.5)


def test_an_organ_smaller_than_a_voxel_of_the_features_is_not_lost():
    features, targets = torch.ones(1, 2, 1, 1, 1), torch.zeros(1, 8, 8, 8, dtype=torch.int64)
    targets[0, 3, 3, 3] = 7
    assert class_means(features, targets)[7][0].tolist() == pytest.approx([1, 1])


def test_without_momentum_the_memory_is_the_last_mean():  # T17
    memory = PrototypeMemory(4, 5, momentum=0.0)
    for seed in (0, 1):
        means = class_means(*batch(seed))
        memory.update(means, (1, 2, 3))
    for channel in (1, 2, 3):
        torch.testing.assert_close(memory.vectors[channel], means[channel][0])


def test_a_cumulative_memory_does_not_depend_on_how_voxels_came_in_batches():  # T17
    (f, t), (g, u) = batch(0), batch(1)
    apart, together = PrototypeMemory(4, 5, "cumulative"), PrototypeMemory(4, 5, "cumulative")
    apart.update(class_means(f, t), (1, 2, 3))
    apart.update(class_means(g, u), (1, 2, 3))
    together.update(class_means(torch.cat((f, g)), torch.cat((t, u))), (1, 2, 3))
    torch.testing.assert_close(apart.vectors, together.vectors)


def test_only_labelled_classes_are_taken_in():
    memory = PrototypeMemory(4, 5)
    memory.update(class_means(*batch(0)), (2,))
    assert memory.stored == [2]


def test_what_was_never_seen_takes_part_in_nothing():  # T18
    means = class_means(*batch(0))
    memory = PrototypeMemory(4, 5)
    assert memory.attraction(means, (1, 2, 3)) == 0
    assert memory.repulsion({1: means[1]}) == 0
    memory.update(means, (1,))
    assert memory.repulsion({1: means[1]}) == 0


def test_the_memory_gets_no_gradient():  # T33
    memory = PrototypeMemory(4, 5)
    memory.update(class_means(*batch(0)), (1, 2, 3))
    features, targets = batch(1)
    features.requires_grad_()
    means = class_means(features, targets)
    (memory.attraction(means, (1, 2)) + memory.repulsion(means)).backward()
    assert features.grad.abs().sum() > 0
    assert memory.vectors.grad is None
    assert not memory.vectors.requires_grad


def test_a_memory_that_grows_keeps_what_it_had():
    memory = PrototypeMemory(3, 5)
    memory.update(class_means(*batch(0)), (1, 2))
    grown = PrototypeMemory.grown(memory.state_dict(), 6, 5, "moving", 0.9)
    assert torch.equal(grown.vectors[:3], memory.vectors)
    assert grown.stored == memory.stored
