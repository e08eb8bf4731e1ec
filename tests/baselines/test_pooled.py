"""Pooled distances of features."""

import pytest
import torch
from torch.nn import functional

from continual_segment.baselines.pooled import (
    box_means,
    channel_distance,
    cube_distance,
    local_means,
    pod_distance,
)

WINDOWS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)


def features(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flat_pod(image, scales):
    """Two-dimensional local POD of one slice (batch, channel, y, x), region by region."""
    found, (height, width) = [], image.shape[2:]
    for scale in scales:
        k, m = height // scale, width // scale
        for i in range(scale):
            for j in range(scale):
                part = image[:, :, i * k : (i + 1) * k, j * m : (j + 1) * m] ** 2
                found += [part.mean(2).flatten(1), part.mean(3).flatten(1)]
    return torch.cat(found, 1)


def test_one_slice_gives_two_dimensional_local_pod_besides_the_means_across_slices():  # T11
    image = features(2, 3, 1, 8, 8)
    everything = sorted(local_means(image.square())[0].tolist())
    flat = flat_pod(image[:, :, 0], (1, 2, 4))[0].tolist()
    across = (image[0].square()).flatten().tolist() * 3  # a mean over one slice is the slice, at each scale
    assert everything == pytest.approx(sorted(flat + across))


def test_one_scale_gives_the_three_means_along_the_axes():  # T11
    image = features(1, 2, 3, 4, 5)
    expected = torch.cat([image.mean(axis).flatten(1) for axis in (2, 3, 4)], dim=1)
    torch.testing.assert_close(local_means(image, (1,)), expected)


def test_the_length_is_that_of_the_formula():
    image = features(1, 2, 8, 8, 8)
    assert local_means(image).shape[1] == (1 + 2 + 4) * 3 * 64 * 2


def test_equal_features_are_no_distance_apart_and_the_slope_is_finite():  # T12
    theirs = features(2, 4, 6, 8, 8)
    for distance in (pod_distance, lambda a, b: cube_distance(a, b, WINDOWS), channel_distance):
        ours = theirs.clone().requires_grad_()
        found = distance(ours, theirs)
        found.backward()
        assert found < 1e-5
        assert ours.grad.isfinite().all()


def test_windows_of_one_voxel_compare_squared_features():  # T13
    ours, theirs = features(2, 3, 4, 4, 4), features(2, 3, 4, 4, 4, seed=1)
    expected = (ours.square() - theirs.square()).flatten(1).norm(dim=1).mean()
    assert cube_distance(ours, theirs, (0.01,)) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_pooling_axis_after_axis_is_pooling_boxes(share):  # T13
    image = features(2, 3, 4, 8, 8)
    kernel = [max(1, round(share * size)) for size in image.shape[2:]]
    expected = functional.avg_pool3d(image, kernel, stride=1, padding=[size // 2 for size in kernel])
    torch.testing.assert_close(box_means(image, share), expected)


def test_signs_do_not_matter_and_a_constant_stays_itself():  # T24
    image = features(1, 2, 4, 4, 4)
    assert pod_distance(image, -image) < 1e-5
    assert (local_means(torch.full((1, 2, 4, 4, 4), 3.0)) == 3).all()


def test_swapping_two_axes_of_both_changes_no_distance():  # T24
    ours, theirs = features(1, 2, 4, 8, 6), features(1, 2, 4, 8, 6, seed=1)
    swapped = pod_distance(ours.transpose(2, 4), theirs.transpose(2, 4))
    assert swapped == pytest.approx(float(pod_distance(ours, theirs)))


def test_the_order_of_samples_changes_no_distance():  # T26
    ours, theirs = features(2, 3, 4, 4, 4), features(2, 3, 4, 4, 4, seed=1)
    for distance in (pod_distance, lambda a, b: cube_distance(a, b, WINDOWS), channel_distance):
        assert distance(ours[[1, 0, 1, 0]], theirs[[1, 0, 1, 0]]) == pytest.approx(
            float(distance(ours, theirs))
        )
