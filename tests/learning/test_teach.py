"""How far a small decoder's probabilities are from its teacher's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from continual_segment.learning.teach import divergence

sizes = st.tuples(
    st.integers(1, 2), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)
)


def random_logits(size, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    logits, taught = (spread * torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    return logits.requires_grad_(), taught


@settings(max_examples=50, deadline=None)
@given(size=sizes, seed=st.integers(0, 1000), spread=st.floats(0.1, 30))
def test_it_and_its_gradient_are_those_of_the_plain_formula(size, seed, spread):
    logits, taught = random_logits(size, seed, spread)
    found = divergence(logits, taught)
    (gradient,) = torch.autograd.grad(3 * found, logits)
    plain = functional.kl_div(logits.log_softmax(1), taught.log_softmax(1), reduction="none", log_target=True)
    expected = plain.sum(1).mean()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(3 * expected, logits)[0])


@given(size=sizes, seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_it_is_0_for_the_teacher_itself_and_positive_for_others(size, seed):
    logits, taught = random_logits(size, seed, 2.0)
    assert divergence(taught, taught).item() == pytest.approx(0, abs=1e-12)
    assert divergence(logits, taught).item() >= -1e-12


def test_under_autocast_it_is_computed_in_single_precision():
    logits, taught = (each.float() for each in random_logits((1, 3, 4, 4, 4), 0, 4.0))
    expected = divergence(logits, taught)
    with torch.autocast("cpu", torch.bfloat16):
        found = divergence(logits, taught)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


def test_a_probability_of_0_costs_nothing_where_the_teacher_has_0_too():
    certain = torch.tensor([200.0, -200.0, -200.0]).reshape(1, 3, 1, 1, 1)
    assert divergence(certain, certain).item() == 0
