"""The mean of the windows that ran."""

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.segmentation.window_accumulator import WindowAccumulator, move_up
from continual_segment.segmentation.windows import gaussian_weights

WINDOW, SLAB = (4, 6, 6), (4, 12, 12)
BOXES = [(slice(y, y + 6), slice(x, x + 6)) for y, x in itertools.product((0, 3, 6), repeat=2)]


@settings(max_examples=50, deadline=None)
@given(ran=st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=2, max_size=2))
def test_windows_that_did_not_run_have_no_part_in_the_mean_and_their_share_is_exact(ran):
    """Two rows of windows, half a window apart; the output of every window is 1."""
    weights = torch.from_numpy(gaussian_weights(WINDOW))
    accumulator, weight = WindowAccumulator(1, SLAB, torch.device("cpu")), torch.zeros(SLAB)
    covered = np.zeros((6, *SLAB[1:]), bool)
    for first, row in zip((0, 2), ran, strict=True):
        for box, runs in zip(BOXES, row, strict=True):
            weight[:, *box] += weights
            if runs:
                accumulator.add(torch.ones(1, *WINDOW), weights, box)
                covered[first : first + 4, *box] = True
        accumulator.skip(weights, [box for box, runs in zip(BOXES, row, strict=True) if not runs])
        slices = 2 if first == 0 else 4
        mean = accumulator.finish(slices, weight, (slice(None),) * 3)
        here = torch.from_numpy(covered[first : first + slices])
        share = torch.ones(here.shape) if mean.share is None else mean.share
        torch.testing.assert_close(mean.values[0].float(), here.float(), atol=1e-2, rtol=0)
        assert torch.equal(share > 0, here)
        move_up(weight, 2)
        accumulator.move_up(2)


def test_nothing_is_kept_for_windows_that_all_ran():
    accumulator = WindowAccumulator(2, SLAB, torch.device("cpu"))
    accumulator.skip(torch.ones(WINDOW), [])
    assert accumulator.skipped_weight is None
