"""The memory of prototypes."""

import pytest
import torch

from continual_segment.lab.baselines.prototypes import PrototypeMemory, class_means


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, 5, 2, 2, 2, generator=generator)
    targets = torch.randint(0, 4, (2, 4, 4, 4), generator=generator)
    return features, targets


def test_the_mean_of_a_class_weighs_voxels_by_how_much_of_them_is_the_class():
    features = torch.tensor([1.0, 3.0]).reshape(1, 1, 1, 1, 2)
    targets = torch.tensor([[[[1, 1, 1, 0]]]])
    means = class_means(features, targets)
    assert means.channels.tolist() == [1]
    assert means.vectors.item() == pytest.approx((1 * 1 + 3 * 0.5) / 1.5)
    assert means.weights.item() == pytest.approx(1.5)


def test_patches_without_an_organ_have_no_means():
    found = class_means(torch.rand(2, 8, 2, 2, 2), torch.zeros(2, 8, 8, 8, dtype=torch.long))
    assert found.vectors.shape == (0, 8)
    assert found.of([1, 2]).channels.tolist() == []


def test_an_organ_smaller_than_a_voxel_of_the_features_is_not_lost():
    features, targets = torch.ones(1, 2, 1, 1, 1), torch.zeros(1, 8, 8, 8, dtype=torch.int64)
    targets[0, 3, 3, 3] = 7
    means = class_means(features, targets)
    assert means.channels.tolist() == [7]
    assert means.vectors[0].tolist() == pytest.approx([1, 1])


def test_without_momentum_the_memory_is_the_last_mean():  # T17
    memory = PrototypeMemory(4, 5, momentum=0.0)
    for seed in (0, 1):
        means = class_means(*batch(seed))
        memory.update(means, (1, 2, 3))
    torch.testing.assert_close(memory.vectors[1:], means.vectors)


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
    assert memory.repulsion(means.of((1,))) == 0
    memory.update(means, (1,))
    assert memory.repulsion(means.of((1,))) == 0


def test_pull_and_push_are_means_of_cosines():
    memory, means = PrototypeMemory(4, 5, momentum=0.0), class_means(*batch(1))
    memory.update(class_means(*batch(0)), (1, 2))
    alike = torch.nn.functional.cosine_similarity(means.vectors[:, None], memory.vectors[None], dim=2)
    pull = ((1 - alike[0, 1]) + (1 - alike[1, 2])) / 2  # class 3 was never seen
    push = [alike[0, 2], alike[1, 1], alike[2, 1], alike[2, 2]]
    assert memory.attraction(means, (1, 2, 3)).item() == pytest.approx(pull.item())
    assert memory.repulsion(means).item() == pytest.approx(sum(max(0, p.item()) for p in push) / 4)


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
