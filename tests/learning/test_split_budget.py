"""One budget for several packs."""

import pytest

from continual_segment.errors import ConfigError
from continual_segment.learning.budget import Budget
from continual_segment.learning.selection import PlanScore
from continual_segment.learning.split_budget import split_budget


def table(losses):
    """Expected plans of a pack: what is lost at each size, in hundredths of a decoder."""
    sizes = {100: 0.0} | losses
    return [
        PlanScore(
            plan=(f"2d@{size}",),
            dice=0.9 - loss,
            paper_parameters=size,
            true_parameters=size,
            multiply_adds=size,
        )
        for size, loss in sizes.items()
    ]


SENSITIVE = table({60: 0.02, 40: 0.08, 20: 0.30, 10: 0.60})
ROBUST = table({60: 0.001, 40: 0.002, 20: 0.004, 10: 0.02})


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 1.2, 1.9])
def test_the_shares_are_no_more_than_the_budget_and_every_pack_has_a_plan_within_its_own(share):
    budget = Budget(share, share)
    parts = split_budget([SENSITIVE, ROBUST], budget)
    assert sum(part.parameters for part in parts) <= share * (1 + 1e-6)
    assert sum(part.multiply_adds for part in parts) <= share * (1 + 1e-6)
    for part, scores in zip(parts, (SENSITIVE, ROBUST), strict=True):
        assert any(part.allows(score, scores[0]) for score in scores)


def test_the_pack_that_would_lose_more_gets_more():
    sensitive, robust = split_budget([SENSITIVE, ROBUST], Budget(0.8, 0.8))
    assert sensitive.parameters >= 0.6
    assert 0.1 <= robust.parameters <= 0.2001


def test_the_order_of_packs_has_no_effect():
    first = split_budget([SENSITIVE, ROBUST], Budget(0.9, 0.7))
    second = split_budget([ROBUST, SENSITIVE], Budget(0.9, 0.7))
    assert first == second[::-1]


def test_with_enough_for_all_nobody_is_made_smaller():
    parts = split_budget([SENSITIVE, ROBUST], Budget(2.0, 2.0))
    assert [part.parameters for part in parts] == [1.0, 1.0]


def test_a_budget_below_the_smallest_plans_is_refused():
    with pytest.raises(ConfigError, match=r"0\.15"):
        split_budget([SENSITIVE, ROBUST], Budget(0.15, 1.0))


def test_no_pack_is_given_up_for_the_others():
    """Where all lose nearly everything before training, what is kept is divided."""
    steep = table({50: 0.55, 30: 0.80, 10: 0.899})
    parts = split_budget([steep, steep], Budget(0.6, 0.6))
    assert [part.parameters for part in parts] == pytest.approx([0.3, 0.3])
