"""Numbers of a report's captions."""

from __future__ import annotations

from math import nan

from continual_segment.evaluation.report import largest_drop


def test_the_largest_drop_is_since_the_step_that_learned_the_dataset():
    steps = [{"a": 0.9}, {"a": 0.85, "b": 0.7}, {"a": 0.95, "b": 0.68, "c": 0.1}]
    assert largest_drop(steps) == 0.05


def test_datasets_that_rise_or_have_no_score_have_no_drop():
    assert largest_drop([{"a": 0.5}, {"a": 0.6, "b": nan}, {"a": 0.6, "b": nan}]) == 0
    assert largest_drop([]) == 0
