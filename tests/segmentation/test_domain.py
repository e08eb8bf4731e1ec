"""To which pack's scans a scan belongs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from continual_segment.data.intensity import Intensity
from continual_segment.model.assessment import Domain
from continual_segment.segmentation.domain import (
    WINDOWS,
    DomainComparison,
    covariance_of,
    describe_scan,
    describe_windows,
    describing_corners,
    domain_of,
)
from continual_segment.segmentation.padded_scan import PaddedScan

CPU = torch.device("cpu")


def scans(mean, count=12, seed=0, channels=5):
    """Descriptions that differ most along one direction."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0, 1.0, (count, 1)) * np.ones(channels)
    return list(np.asarray(mean) + common + rng.normal(0, 0.1, (count, channels)))


def encode(window):
    """Two stages of one channel each: the input, and twice its half resolution."""
    return [window, 2 * window[..., ::2, ::2, ::2]]


@pytest.fixture
def two():
    one, other = np.zeros(5), np.array([0.6, 0, 0, 0, -0.6])
    return DomainComparison({"a": domain_of(scans(one), 2), "b": domain_of(scans(other, seed=1), 2)})


def test_a_scan_is_familiar_to_the_pack_whose_scans_look_like_it(two):
    for pack, mean in (("a", [0, 0, 0, 0, 0]), ("b", [0.6, 0, 0, 0, -0.6])):
        for scan in scans(mean, seed=2):
            found = two.familiarity(scan)
            assert found[pack] == max(found.values()) == 1


def test_what_differs_within_datasets_is_no_sign_of_another_dataset(two):
    """Three usual deviations along the direction in which all scans differ, then the same across it."""
    common = two.familiarity(np.full(5, 3.0))
    assert min(common.values()) > 0.2
    across = two.familiarity(np.array([3.0, 0, 0, 0, -3.0]))
    assert across["a"] < 0.01


def test_packs_with_the_same_domain_are_equally_familiar():
    domain = domain_of(scans(np.zeros(5)), 2)
    for scan in (np.zeros(5), np.full(5, 100.0)):
        assert DomainComparison({"a": domain, "b": domain}).familiarity(scan) == {"a": 1, "b": 1}


def test_a_domain_keeps_the_covariance_along_its_directions_and_all_variances():
    described = scans(np.arange(5.0), count=40)
    expected = np.cov(np.stack(described).T)
    whole, diagonal = domain_of(described, 5), domain_of(described, 0)
    np.testing.assert_allclose(covariance_of(whole), expected, atol=2e-3)
    np.testing.assert_allclose(np.diag(covariance_of(diagonal)), np.diag(expected), rtol=2e-2)
    np.testing.assert_allclose(whole.mean, np.mean(described, axis=0), atol=1e-5)
    assert len(domain_of(described[:3], 4).directions) == 2


def test_the_largest_numbers_of_a_hostile_domain_stay_finite():
    far = Domain((1e6,) * 3, ((1e6,) * 3,), (1e-6,) * 3, 2)
    near = replace(far, mean=(-1e6, 0.0, 1e6), directions=())
    found = DomainComparison({"a": far, "b": near}).familiarity(np.zeros(3))
    assert all(0 <= each <= 1 for each in found.values())


def test_a_scan_is_described_by_the_spread_of_every_channel():
    windows = [np.full((2, 4, 4), value, np.float32) for value in (1, 5)]
    windows[0][0] = 3  # half of it differs by 2
    found = describe_windows(windows, encode, CPU)
    half = windows[0].std(ddof=1) / 2
    assert found == pytest.approx([half, 0.0])  # the coarse stage sees the first slice alone


def test_a_few_windows_spread_over_the_scan_describe_it():
    corners = describing_corners((40, 40, 40), (8, 8, 8))
    assert len(corners) == WINDOWS
    assert (corners[0], corners[-1]) == ([0, 0, 0], [32, 32, 32])
    assert describing_corners((4, 20, 8), (8, 10, 8)) == [[-2, 0, 0], [-2, 10, 0]]


def test_segmentation_reads_the_windows_that_learning_reads():
    """The scan is not cropped to the body, and what is outside of it is air."""
    voxels = np.random.default_rng(0).integers(-1000, 1000, (4, 20, 9)).astype(np.int16)
    intensity = Intensity.window(-400.0, 400.0).fitted()
    scan = PaddedScan(voxels, (8, 10, 8), intensity, (slice(2, 18), slice(0, 9)))
    window = scan.window_at([-2, 10, 1])
    assert window.shape == (8, 10, 8)
    np.testing.assert_array_equal(window[2:6], intensity.normalise(voxels[:, 10:, 1:]))
    assert set(np.unique(window[[0, 1, 6, 7]])) == {np.float32(intensity.padding_value)}
    assert describe_scan(scan, encode, CPU).shape == (2,)
