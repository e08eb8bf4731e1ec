from math import isnan, nan

import pytest

from continual_segment.evaluation.forgetting import all_scores, forgetting, nan_mean

UPPER_BOUND = 93.24  # what every comparison method has on TotalSeg after step 1

# The paper's appendix table of mean DSC and forgetting rate at each step (label tab:step_task).
# Per step, per dataset: DSC and, for a dataset learned before, the printed rate; then the printed mean rate.
STEPS = {
    ("MiB", "A"): [
        ({"total": (45.80, 50.87), "chest": (78.40, None)}, 50.87),
        ({"total": (11.68, 87.48), "chest": (25.66, 67.27), "head": (84.22, None)}, 77.37),
        (
            {"total": (7.65, 91.80), "chest": (19.24, 75.46), "head": (6.37, 92.43), "eso": (86.92, None)},
            86.56,
        ),
    ],
    ("ILT", "A"): [
        ({"total": (48.50, 47.98), "chest": (77.78, None)}, 47.98),
        ({"total": (13.68, 85.33), "chest": (28.74, 63.04), "head": (84.21, None)}, 74.19),
        (
            {"total": (10.87, 88.34), "chest": (27.87, 64.17), "head": (6.39, 92.42), "eso": (85.75, None)},
            81.64,
        ),
    ],
    ("PLOP", "A"): [
        ({"total": (59.13, 36.59), "chest": (76.52, None)}, 36.59),
        ({"total": (39.46, 57.68), "chest": (49.19, 35.72), "head": (83.17, None)}, 46.70),
        (
            {"total": (37.30, 59.99), "chest": (51.74, 32.38), "head": (25.38, 69.48), "eso": (82.90, None)},
            53.95,
        ),
    ],
    ("LISMO", "A"): [
        ({"total": (52.57, 43.62), "chest": (78.48, None)}, 43.62),
        ({"total": (13.59, 85.42), "chest": (29.05, 62.99), "head": (84.36, None)}, 74.21),
        (
            {"total": (10.82, 88.40), "chest": (28.24, 64.02), "head": (6.30, 92.54), "eso": (87.12, None)},
            81.65,
        ),
    ],
    ("MiB", "B"): [
        ({"total": (21.96, 76.45), "head": (84.49, None)}, 76.45),
        ({"total": (10.72, 88.50), "head": (6.38, 92.45), "chest": (78.46, None)}, 90.48),
        (
            {"total": (10.35, 88.90), "head": (6.29, 92.55), "chest": (65.63, 16.35), "eso": (86.79, None)},
            65.94,
        ),
    ],
    ("ILT", "B"): [
        ({"total": (21.62, 76.81), "head": (84.25, None)}, 76.81),
        ({"total": (14.10, 84.88), "head": (8.48, 89.93), "chest": (78.02, None)}, 87.41),
        (
            {"total": (13.12, 85.93), "head": (6.18, 92.66), "chest": (67.28, 13.76), "eso": (85.52, None)},
            64.12,
        ),
    ],
    ("PLOP", "B"): [
        # The printed mean, 50.87, is a slip: the row's only previous dataset has 51.62.
        ({"total": (45.11, 51.62), "head": (83.59, None)}, 51.62),
        ({"total": (31.90, 65.79), "head": (17.56, 78.99), "chest": (76.13, None)}, 72.39),
        (
            {"total": (30.82, 66.95), "head": (15.77, 81.13), "chest": (70.18, 7.81), "eso": (83.41, None)},
            51.96,
        ),
    ],
    ("LISMO", "B"): [
        ({"total": (24.36, 73.88), "head": (84.35, None)}, 73.88),
        ({"total": (15.08, 83.83), "head": (7.85, 90.69), "chest": (78.47, None)}, 87.26),
        (
            {"total": (14.04, 84.94), "head": (6.15, 92.71), "chest": (67.19, 14.37), "eso": (86.87, None)},
            64.01,
        ),
    ],
}


@pytest.mark.parametrize(("method", "order"), STEPS)
def test_relative_forgetting_is_the_rate_of_the_papers_step_table(method, order):
    rows = STEPS[method, order]
    dice = [{"total": UPPER_BOUND}, *({name: cell[0] for name, cell in row.items()} for row, _ in rows)]
    found = forgetting(dice)
    assert [step.step for step in found] == [2, 3, 4]
    for step, (row, printed_mean) in zip(found, rows, strict=True):
        printed = {name: rate for name, (_, rate) in row.items() if rate is not None}
        rates = {name: 100 * share for name, share in step.relative.items()}
        assert rates == pytest.approx(printed, abs=0.02)  # DSC is printed with two decimals
        assert 100 * step.mean_relative == pytest.approx(printed_mean, abs=0.02)


def test_forgetting_counts_from_the_best_earlier_step_not_the_last():
    # a: 0.8, then 0.6, then 0.7: best 0.8. b: 0.5, then 0.4. Absolute 0.1 and 0.1, relative 1/8 and 1/5.
    last = forgetting([{"a": 0.8}, {"a": 0.6, "b": 0.5}, {"a": 0.7, "b": 0.4, "c": 0.9}])[-1]
    assert last.absolute == pytest.approx({"a": 0.1, "b": 0.1})
    assert last.relative == pytest.approx({"a": 0.125, "b": 0.2})
    assert last.mean_absolute == pytest.approx(0.1)
    assert last.mean_relative == pytest.approx(0.1625)


def test_scores_that_stay_give_exactly_zero():
    step = forgetting([{"a": 0.93}, {"a": 0.93, "b": 0.7}])[0]
    assert (step.mean_absolute, step.mean_relative) == (0, 0)


def test_a_later_step_that_helps_gives_negative_forgetting():
    assert forgetting([{"a": 0.5}, {"a": 0.6, "b": 0.7}])[0].absolute == pytest.approx({"a": -0.1})


def test_what_was_never_learned_cannot_be_forgotten():
    assert forgetting([{"a": 0.0}, {"a": 0.0, "b": 0.7}])[0].relative == {"a": 0.0}


def test_the_first_step_has_nothing_to_forget():
    assert forgetting([{"a": 0.9}]) == []


def test_an_undefined_dice_is_not_hidden():
    assert isnan(forgetting([{"a": 0.9}, {"a": nan, "b": 0.5}])[0].mean_absolute)
    assert isnan(forgetting([{"a": 0.9}, {"a": nan, "b": 0.5}, {"a": 0.9, "b": 0.5}])[1].mean_absolute)


def test_a_previous_dataset_without_a_score_is_named():
    with pytest.raises(ValueError, match="Step 2 has no Dice of a"):
        forgetting([{"a": 0.9}, {"b": 0.5}])


def papers_datasets(total, chest, head, esophagus):
    """The paper's four datasets with every organ at its dataset's mean; four and one organs are shared."""
    shared = ["esophagus", "trachea", "pulmonary_artery", "inferior_vena_cava"]
    return {
        "total": dict.fromkeys([*shared, *(f"total_{i}" for i in range(99))], total),
        "chest": dict.fromkeys([*shared, *(f"chest_{i}" for i in range(27))], chest),
        "head": dict.fromkeys((f"head_{i}" for i in range(13)), head),
        "eso": {"esophagus": esophagus},
    }


@pytest.mark.parametrize(
    ("means", "unique", "pairs"),
    [
        # The DSC columns of the paper's main table (tab:main) weighted by hand:
        # (99T + 30C + 13H + E) / 143 and (103T + 31C + 13H + E) / 148.
        ((93.24, 78.45, 84.35, 87.15), 89.29, 89.32),  # upper bound
        ((92.98, 78.26, 83.97, 86.94), 89.03, 89.06),  # ours
        ((7.65, 19.24, 6.37, 86.92), 10.52, 10.50),  # MiB, order A
        ((30.82, 70.18, 15.77, 83.41), 38.08, 38.10),  # PLOP, order B
    ],
)
def test_all_over_the_papers_main_table_counts_143_organs_and_148_pairs(means, unique, pairs):
    scores = all_scores(papers_datasets(*means))
    assert (scores.organs, scores.pairs) == (143, 148)
    assert scores.all_organs == pytest.approx(unique, abs=0.006)
    assert scores.all_pairs == pytest.approx(pairs, abs=0.006)
    assert scores.all_macro == pytest.approx(sum(means) / 4)


def test_a_shared_organ_counts_once_with_the_newest_datasets_value():
    older, newer = {"liver": 0.9, "spleen": 0.7}, {"Liver": 0.5}
    assert all_scores({"older": older, "newer": newer}).all_organs == pytest.approx((0.5 + 0.7) / 2)
    assert all_scores({"newer": newer, "older": older}).all_organs == pytest.approx((0.9 + 0.7) / 2)


def test_undefined_values_are_left_out_and_counted():
    scores = all_scores({"a": {"liver": 4.0, "spleen": nan}, "b": {"liver": nan, "heart": 6.0}})
    assert (scores.all_organs, scores.organs, scores.organs_excluded) == (6.0, 3, 2)
    assert (scores.all_pairs, scores.pairs, scores.pairs_excluded) == (5.0, 4, 2)
    assert scores.all_macro == 5.0


def test_the_mean_of_nothing_is_undefined():
    assert isnan(nan_mean([]))
    assert isnan(nan_mean([nan]))
