"""What order and distance say about scores."""

import math

import pytest
import torch

from continual_segment.body_parts.loss import (
    SCORE_PER_MM,
    anchor_loss,
    distance_loss,
    offset_loss,
    order_loss,
    sigmoid_loss,
)

HEIGHTS = torch.tensor([[0.0, 30.0, 60.0, 90.0], [0.0, 12.0, 24.0, 36.0]])


@pytest.mark.parametrize("slope", [-3.0, 0.0, 0.5, 7.0])
def test_a_linear_ramp_has_no_distance_loss_whatever_its_slope(slope):
    assert distance_loss(slope * torch.arange(6.0).repeat(3, 1)).item() == 0


def test_a_bent_row_has_one():
    assert distance_loss(torch.tensor([[0.0, 1.0, 4.0, 9.0]])).item() > 0


def test_constant_scores_have_order_loss_log_2():
    assert order_loss(torch.full((2, 5), 3.0)).item() == pytest.approx(math.log(2))


def test_rising_scores_are_better_ordered_than_falling_ones():
    ramp = torch.arange(5.0)[None]
    assert order_loss(ramp) < math.log(2) < order_loss(-ramp)


@pytest.mark.parametrize("loss", [offset_loss, sigmoid_loss])
def test_scores_that_rise_as_heights_do_have_no_loss(loss):
    offsets = torch.tensor([[5.0], [-2.0]])  # of whole scans: nothing within a scan tells them
    assert loss(SCORE_PER_MM * HEIGHTS + offsets, HEIGHTS).item() == pytest.approx(0, abs=1e-9)
    for wrong in (-SCORE_PER_MM, 0.0, 3 * SCORE_PER_MM):
        assert loss(wrong * HEIGHTS, HEIGHTS).item() > 1e-4


def test_the_sigmoid_loss_is_bounded():
    assert sigmoid_loss(-1e6 * HEIGHTS, HEIGHTS).item() <= 1


def test_anchors_pull_where_heights_are_known_and_only_there():
    usual = torch.tensor([[0.0, 100.0, torch.nan]])
    assert anchor_loss(torch.tensor([[0.0, 1.0, 77.0]]), usual) == 0
    assert anchor_loss(torch.tensor([[1.0, 2.0, 0.0]]), usual) > 0.5
    assert anchor_loss(torch.ones(1, 3), torch.full((1, 3), torch.nan)) == 0
