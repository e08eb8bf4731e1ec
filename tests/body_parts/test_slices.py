"""What the regressor sees of a scan."""

import numpy as np
import pytest
import torch

from continual_segment.body_parts.slices import RowConfig, SliceRows, SliceView, Thumbnails, make_thumbnails
from continual_segment.errors import DatasetError
from continual_segment.networks.slice_scorer import SliceScorer
from continual_segment.volume import Grid, Volume


def box(slices=30, slice_mm=3.0, pixel_mm=4.0, at=20):
    """A square body in air, off the middle, in the upper two thirds of the slices."""
    voxels = np.full((slices, 100, 100), -1000, np.int16)
    voxels[slices // 3 :, at : at + 40, at : at + 40] = 40
    return Volume(voxels, Grid(voxels.shape, np.diag([pixel_mm, pixel_mm, slice_mm, 1.0])))


def test_thin_slices_are_averaged_and_thick_ones_are_kept():
    assert make_thumbnails(box(slice_mm=3.0), SliceView()).slices.shape == (15, 56, 56)
    thick = make_thumbnails(box(slice_mm=10.0), SliceView())
    assert len(thick.slices) == 30
    assert thick.slice_mm == 10.0


def test_the_body_is_moved_to_the_middle_and_slices_of_air_are_known():
    found = make_thumbnails(box(slice_mm=6.0, at=5), SliceView())
    y, x = (np.flatnonzero((found.slices[20] > 0).any(axis)).mean() for axis in (1, 0))
    assert (y, x) == pytest.approx((28, 28), abs=1.1)
    assert found.body.tolist() == [False] * 10 + [True] * 20


def test_a_body_larger_than_the_canvas_is_cut():
    wide = Volume(np.full((9, 200, 200), 40, np.int16), Grid((9, 200, 200), np.diag([4.0, 4.0, 6.0, 1.0])))
    assert (make_thumbnails(wide, SliceView()).slices == 5).all()


def scan(slices=40, slice_mm=6.0):
    """Slice k is k everywhere."""
    voxels = np.broadcast_to(np.arange(slices, dtype=np.int8)[:, None, None], (slices, 16, 16)).copy()
    return Thumbnails(voxels, slice_mm, np.ones(slices, bool))


def test_a_batch_follows_from_the_seed_and_its_number():
    rows = SliceRows([scan()], RowConfig(scans=2, slices=4), seed=3, iterations=10)
    for one, other in zip(rows[5], rows[5], strict=True):
        assert torch.equal(one.nan_to_num(-1), other.nan_to_num(-1))
    assert not torch.equal(rows[5][0], rows[6][0])
    assert rows[5][0].shape == (2, 4, 16, 16)


def test_rows_rise_at_nearly_equal_distances_within_the_body():
    partly = scan()
    partly.body[:10] = False
    rows = SliceRows([partly], RowConfig(scans=8, slices=5, gap_mm=(12.0, 30.0)), 0, 50)
    heights = torch.cat([rows[i][1][0] for i in range(50)])
    gaps = heights.diff(dim=1)
    assert (gaps > 0).all()
    assert gaps.max() <= 36
    assert (gaps.amax(1) - gaps.amin(1)).max() <= 6
    assert heights.min() == 60  # the first slice of the body is shown, and none below
    assert heights.max() == 234


def test_scans_without_a_body_are_no_training_data():
    empty = Thumbnails(np.full((9, 16, 16), -128, np.int8), 6.0, np.zeros(9, bool))
    with pytest.raises(DatasetError, match="three slices"):
        SliceRows([empty], RowConfig(), 0, 1)


def test_the_network_scores_each_slice_alone():
    torch.manual_seed(0)
    network = SliceScorer().eval()
    slices = torch.randn(5, 1, 56, 56)
    scores = network(slices)
    assert scores.shape == (5,)
    torch.testing.assert_close(network(slices[2:3])[0], scores[2], atol=1e-5, rtol=1e-4)
