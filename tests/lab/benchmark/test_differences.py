"""Which differences between methods count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from continual_segment.evaluation.scores import Evaluation, ScoreRow
from continual_segment.lab.benchmark.differences import dice_by_scan, difference_tables, holm, signed_rank

NAN = float("nan")


def evaluation(dice, cases=8):
    """Two organs in every scan, an organ that the truth lacks, and scans that become harder."""
    rows = []
    for number in range(cases):
        for organ, ml in (("aorta", 1.0), ("liver", 2.0), ("spleen", 0.0)):
            value = dice - 0.01 * number if ml else NAN
            rows.append(ScoreRow(f"c{number}", organ, value, 1, 1, 1, 1, ml, 1.0, NAN))
    return Evaluation.from_rows(rows)


class MadeUpResults:
    """After the last step: by method, the Dice of each seed."""

    def __init__(self, **methods):
        self.methods = {name: dict(enumerate(dice)) for name, dice in methods.items()}

    def finished(self, order):
        return list(self.methods)

    def seeds(self, order, method):
        return [f"{method}:{seed}" for seed in self.methods[method]]

    def last(self, order, seed):
        method, _, number = seed.partition(":")
        return {"body": evaluation(self.methods[method][int(number)])}


def test_a_scan_has_the_mean_of_the_organs_that_it_shows_over_all_seeds():
    found = dice_by_scan(MadeUpResults(ours=(0.8, 0.9)), "A", "ours")
    assert found["body", "c0"] == pytest.approx(0.85)
    assert found["body", "c3"] == pytest.approx(0.82)


def test_methods_are_compared_with_the_first_scan_by_scan():
    (table,) = difference_tables(MadeUpResults(ours=(0.8, 0.9), mib=(0.6,), same=(0.85,)), "A")
    assert table.columns[3] == "points above ours"
    worse, same = table.rows
    assert worse[:5] == ["mib", "1", "8", "-25.0", "0 of 8"]
    assert float(worse[5]) < 0.05
    assert same[3:] == ["0.0", "0 of 8", "1"]


def test_one_method_alone_is_compared_with_nothing():
    assert not list(difference_tables(MadeUpResults(ours=(0.8,)), "A"))


def test_the_test_is_wilcoxons():
    differences = [1.0, 2.0, -0.5, 3.0, 4.0]
    assert signed_rank(differences) == stats.wilcoxon(differences).pvalue
    assert signed_rank([0.0, 0.0]) == 1


@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrected_p_values_are_larger_and_in_the_same_order(values):
    found = holm(values)
    assert all(old <= new <= 1 for old, new in zip(values, found, strict=True))
    for one in range(len(values)):
        for other in range(len(values)):
            assert values[one] >= values[other] or found[one] <= found[other]


def test_the_smallest_p_value_is_multiplied_by_their_number():
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
