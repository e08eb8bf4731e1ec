"""Pooled distances of features."""

import pytest
import torch
from torch.nn import functional

from continual_segment.lab.baselines.pooled import channel_distance, cube_distance, pod_distance

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


def from_nothing(distance, image):
    """The distance to features of 0: how long what is averaged of the squared image is."""
    return float(distance(image, torch.zeros_like(image)))


def test_one_slice_gives_two_dimensional_local_pod_besides_the_means_across_slices():  # T11
    image = features(1, 3, 1, 8, 8)
    flat = flat_pod(image[:, :, 0], (1, 2, 4)).norm()
    across = image.square().norm()  # a mean over one slice is the slice, at each of three scales
    assert from_nothing(pod_distance, image) == pytest.approx(float((flat**2 + 3 * across**2).sqrt()))


def test_one_scale_gives_the_three_means_along_the_axes():  # T11
    image = features(1, 2, 3, 4, 5)
    expected = torch.cat([image.square().mean(axis).flatten(1) for axis in (2, 3, 4)], dim=1).norm()
    found = from_nothing(lambda a, b: pod_distance(a, b, (1,)), image)
    assert found == pytest.approx(float(expected))


def test_what_is_left_over_at_the_end_of_an_axis_is_dropped():
    image = features(1, 2, 4, 4, 5)
    two_parts = from_nothing(lambda a, b: pod_distance(a, b, (2,)), image)
    assert two_parts == pytest.approx(from_nothing(lambda a, b: pod_distance(a, b, (2,)), image[..., :4]))


def test_a_constant_stays_itself_in_as_many_means_as_the_formula_has():  # T24
    means = (1 + 2 + 4) * 3 * 64 * 2
    found = from_nothing(pod_distance, torch.full((1, 2, 8, 8, 8), 3.0, dtype=torch.float64))
    assert found == pytest.approx(9 * means**0.5)


@pytest.mark.parametrize(
    "distance", [pod_distance, lambda a, b: cube_distance(a, b, (0.3, 0.6)), channel_distance]
)
def test_numeric_gradients_agree(distance):  # T30
    ours, theirs = features(2, 3, 4, 3, 5).requires_grad_(), features(2, 3, 4, 3, 5, seed=1)
    assert torch.autograd.gradcheck(lambda student: distance(student, theirs), ours)


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
    image = features(1, 3, 4, 8, 8)
    kernel = [max(1, round(share * size)) for size in image.shape[2:]]
    pooled = functional.avg_pool3d(image.square(), kernel, stride=1, padding=[k // 2 for k in kernel])
    found = from_nothing(lambda a, b: cube_distance(a, b, (share,)), image)
    assert found == pytest.approx(float(pooled.norm()))


def test_channels_are_averaged_in_threes():
    image = features(1, 5, 2, 3, 4)
    in_rows = image.square().flatten(2)[:, None]
    pooled = functional.avg_pool2d(in_rows, (3, 1), stride=1, padding=(1, 0))
    assert from_nothing(channel_distance, image) == pytest.approx(float(pooled.norm()))


def test_signs_do_not_matter():  # T24
    image = features(1, 2, 4, 4, 4)
    assert pod_distance(image, -image) < 1e-5


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
