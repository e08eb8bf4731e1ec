"""Dice on validation patches."""

import math

import pytest
import torch
from torch.nn.functional import one_hot

from continual_segment.training.validate import patch_dice

ORGANS = 3


class LabelledBatches:
    """Images that carry their own labels, so that a segmenter can be as good as a test wants."""

    def __init__(self, labels):
        self.labels = labels

    def __getitem__(self, number):
        labels = self.labels[number][None]
        return labels[:, None].float(), labels


def perfect(images):
    return one_hot(images[:, 0].long(), ORGANS + 1).movedim(-1, 1).float()


@pytest.fixture
def batches():
    labels = torch.randint(
        0, 3, (4, 3, 4, 5), generator=torch.Generator().manual_seed(0)
    )  # organ 3 never occurs
    return LabelledBatches(labels)


def dice(segment, batches, count=4):
    return patch_dice(segment, batches, count, ORGANS, "cpu")


def test_a_perfect_segmenter_has_dice_1(batches):
    assert dice(perfect, batches) == 1


def test_one_that_sees_nothing_has_dice_0(batches):
    assert dice(lambda images: perfect(torch.zeros_like(images)), batches) == 0


def test_organs_are_counted_over_all_patches_and_absent_ones_left_out(batches):
    labels = batches.labels.clone()
    labels[labels == 2] = 0
    only_organ_1 = lambda images: perfect(images * (images == 1))  # noqa: E731
    assert dice(only_organ_1, batches) == pytest.approx(0.5)  # 1 for organ 1, 0 for organ 2
    assert dice(only_organ_1, LabelledBatches(labels)) == 1


def test_a_half_found_organ_has_the_dice_of_its_counts():
    labels = torch.zeros(1, 1, 2, 4, dtype=torch.int64)
    labels[0, 0, 0] = 1  # four voxels, of which two will be found, and one more beside them
    found = labels.clone()
    found[0, 0, 0, :2] = 0
    found[0, 0, 1, 0] = 1
    assert dice(lambda _: perfect(found[:, None].float()), LabelledBatches(labels), 1) == pytest.approx(4 / 7)


def test_without_any_organ_there_is_no_dice():
    assert math.isnan(dice(perfect, LabelledBatches(torch.zeros(1, 2, 2, 2, dtype=torch.int64)), 1))
