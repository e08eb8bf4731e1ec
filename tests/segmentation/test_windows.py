"""Where windows lie and what their voxels count."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.segmentation.windows import gaussian_weights, window_starts


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(1, 300),
    window=st.integers(1, 70),
    overlap=st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.7, 0.75, 0.8, 0.9, 0.99]),
)
def test_windows_cover_the_axis_with_at_least_the_overlap_asked_for(length, window, overlap):
    starts = window_starts(length, window, overlap)
    assert starts[0] == 0
    assert starts[-1] == max(0, length - window)  # the last one ends where the axis does
    steps = np.diff(starts)
    assert (steps > 0).all()  # no window twice
    assert (steps <= max(1, window * (1 - overlap) + 1e-6)).all()


@settings(max_examples=100, deadline=None)
@given(length=st.integers(1, 300), window=st.integers(1, 70))
def test_no_window_could_be_left_out(length, window):
    count = len(window_starts(length, window, overlap=0.0))
    assert (count - 1) * window < length  # without overlap, one window fewer could not cover the axis


@settings(max_examples=50, deadline=None)
@given(window=st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(1, 16)))
def test_weights_are_positive_symmetric_and_highest_in_the_middle(window):
    weights = gaussian_weights(window)
    assert weights.shape == window
    assert weights.dtype == np.float32
    assert (weights > 0).all()
    for axis in range(3):
        np.testing.assert_array_equal(weights, np.flip(weights, axis))
    middle = tuple(length // 2 for length in window)
    assert weights[middle] == weights.max()


def test_weights_fall_towards_the_faces_as_in_nnunet():
    line = gaussian_weights((1, 1, 33))[0, 0]
    assert line[16] == 1
    np.testing.assert_allclose(line[16 + 4], np.exp(-0.5 * (4 / (33 / 8)) ** 2), rtol=1e-6)
    assert (np.diff(line[16:]) <= 0).all()
