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
    weight = torch.zeros(SLAB)
    accumulator = WindowAccumulator(1, weight)
    covered = np.zeros((6, *SLAB[1:]), bool)
    for first, row in zip((0, 2), ran, strict=True):
        for box, runs in zip(BOXES, row, strict=True):
            if runs:
                accumulator.add(torch.ones(1, *WINDOW), weights, box)
                covered[first : first + 4, *box] = True
        accumulator.skip(weights, [box for box, runs in zip(BOXES, row, strict=True) if not runs])
        for box in BOXES:
            weight[:, *box] += weights
        slices = 2 if first == 0 else 4
        mean = accumulator.finish(slices, (slice(None),) * 3)
        here = torch.from_numpy(covered[first : first + slices])
        share = torch.ones(here.shape) if mean.share is None else mean.share
        torch.testing.assert_close(mean.values[0].float(), here.float(), atol=1e-2, rtol=0)
        assert torch.equal(share > 0, here)
        move_up(weight, 2)
        accumulator.move_up(2)


def test_nothing_is_kept_for_windows_that_all_ran():
    accumulator = WindowAccumulator(2, torch.zeros(SLAB))
    accumulator.add(torch.ones(2, *WINDOW), torch.ones(WINDOW), BOXES[0])
    accumulator.skip(torch.ones(WINDOW), [])
    assert accumulator.skipped_weight is None


def test_a_pack_takes_memory_only_while_the_slab_has_windows_that_ran():
    weight, weights = torch.zeros(SLAB), torch.ones(WINDOW)
    accumulator = WindowAccumulator(2, weight)
    allocated = []
    for runs in (False, True, False, False):  # rows of windows, half a window apart
        if runs:
            for box in BOXES:
                accumulator.add(torch.ones(2, *WINDOW), weights, box)
        accumulator.skip(weights, [] if runs else BOXES)
        for box in BOXES:
            weight[:, *box] += weights
        mean = accumulator.finish(2, (slice(None),) * 3)
        allocated.append(accumulator.total is not None)
        assert (mean.values.untyped_storage().nbytes() > 2) == allocated[-1]
        assert mean.values.shape == (2, 2, *SLAB[1:])
        move_up(weight, 2)
        accumulator.move_up(2)
    assert allocated == [False, True, True, False]
    assert mean.share is not None
    assert not mean.share.any()
