"""What the paper prints, as we keep it, and tables of ours."""

from types import SimpleNamespace

import pytest

from continual_segment.config import load_preset
from continual_segment.lab.benchmark.extra_tables import encoder_tables
from continual_segment.lab.benchmark.plan import Plan
from continual_segment.lab.benchmark.table import Table, cell, paper, papers_order, printed
from continual_segment.organs import known_organs


def test_the_papers_dataset_means_follow_from_its_organ_rows():
    """Both were typed in from different tables, so a slip in either shows."""
    for dataset, count in (("chest", 31), ("headneck", 13)):
        organs = paper()["organs"][dataset]
        assert len(organs) == count
        for method in ("ours", "upper-bound"):
            for metric in range(3):
                mean = sum(row[method][metric] for row in organs.values()) / count
                assert mean == pytest.approx(paper()["table1"]["A"][method][dataset][metric], abs=0.006)


def test_the_papers_group_rows_weighted_by_their_organs_give_its_broad_dataset():
    sizes = dict(zip(paper()["groups"], (12, 8, 5, 8, 1, 24, 24, 11, 10), strict=True))
    for method in ("ours", "upper-bound"):
        mean = sum(size * paper()["groups"][name][method][0] for name, size in sizes.items()) / 103
        assert mean == pytest.approx(paper()["table1"]["A"][method]["totalseg"][0], abs=0.006)


def test_the_last_step_of_the_step_table_is_table_1():
    for order in ("A", "B"):
        for method, steps in paper()["steps"][order].items():
            for dataset in ("totalseg", "chest", "headneck", "esophagus"):
                assert steps["4"][dataset][0] == paper()["table1"][order][method][dataset][0]


def test_forgetting_rates_follow_from_the_step_table():
    steps = paper()["steps"]["A"]["mib"]
    assert 100 * (1 - steps["3"]["totalseg"][0] / 93.24) == pytest.approx(steps["3"]["totalseg"][1], abs=0.02)


def test_organs_and_groups_have_our_names():
    names, groups = ({getattr(organ, key) for organ in known_organs()} for key in ("name", "group"))
    assert set(paper()["groups"]) <= groups
    for organs in paper()["organs"].values():
        assert set(organs) <= names


def test_cells_show_ours_and_the_papers():
    assert cell(84.26, 1, 92.98) == "84.3 (93.0)"
    assert cell(84.26, 1) == "84.3"
    assert cell(float("nan"), 1, 92.98) == "- (93.0)"
    assert cell(-0.04, 1, 0.0) == "0.0 (0.0)"
    assert printed("table1", "A", "fine-tuning", "chest") is None


def test_cells_of_several_seeds_show_mean_and_standard_deviation():
    assert cell([80.0, 82.0, 84.0], 1, 92.98) == "82.0 ± 2.0 (93.0)"
    assert cell([80.0], 1) == "80.0"
    assert cell([80.0, float("nan")], 1) == "80.0"
    assert cell([], 1) == "-"


def test_the_papers_numbers_stand_beside_its_own_datasets_in_its_own_orders_only():
    assert papers_order(("totalseg", "headneck", "chest", "esophagus")) == "B"
    assert papers_order(("totalseg", "headneck")) == "B"
    assert papers_order(("totalseg", "chest")) == "A"
    for others in (("base", "chest"), ("chest", "totalseg"), ("totalseg", "esophagus"), ("liver",)):
        assert printed("steps", papers_order(others), "mib", "2", "all") is None


def test_a_table_is_written_for_readers_and_for_programs():
    table = Table("one", "One", ("a", "b"), [["1", "2"]], "Note.")
    assert table.markdown() == "### One\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\nNote.\n"
    assert table.csv() == "a,b\n1,2\n"


class MadeUpResults:
    """Ours after the last step of some orders: an organ each of two datasets, better by the own pack."""

    def __init__(self, orders, unfinished=()):
        self.plan = Plan(load_preset("tiny"), {"body": None, "neck": None}, orders, ("ours",))
        self.unfinished = unfinished

    def finished(self, order):
        return [] if order in self.unfinished else ["ours", "ours, own pack"]

    def last(self, order, method):
        dice = 0.8 if method == "ours" else 0.9
        values = {name: dice - 0.1 * place for place, name in enumerate(self.plan.orders[order])}
        return {name: SimpleNamespace(mean=SimpleNamespace(dice=value)) for name, value in values.items()}

    def all(self, found):
        assert list(found) == ["body", "neck"]
        return SimpleNamespace(all_organs=found["neck"].mean.dice)


def test_encoders_of_other_datasets_are_compared_once_each():
    orders = {"A": ("body", "neck"), "again": ("body", "neck"), "21": ("neck", "body")}
    (table,) = encoder_tables(MadeUpResults(orders), "ours")
    assert table.columns == ("encoder trained on", "body DSC", "neck DSC", "all DSC", "all DSC, merged")
    assert table.rows == [
        ["body", "90.0", "80.0", "80.0", "70.0"],
        ["neck", "80.0", "90.0", "90.0", "80.0"],
    ]
    assert not list(encoder_tables(MadeUpResults(orders, unfinished=("21",)), "ours"))
