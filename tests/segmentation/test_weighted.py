"""The terms of the rule `weighted`, one law each."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.organs import BODY_PARTS
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.predictions import PackPrediction, PackProfile
from continual_segment.segmentation.weighted import LEAST_TRUST, WeightedVote

ESOPHAGUS, LUNG, LIVER = 42, 13, 5
CHEST, HEAD = BODY_PARTS.index("chest"), BODY_PARTS.index("head_neck")
RULE = WeightedVote(calibration=True)
"""With every term."""


def pack(name, voxels, dice=None, temperature=None, aware=False, coverage=None):
    """A pack's prediction; each voxel is a dict organ -> probability, the rest is background."""
    organs = sorted({organ for voxel in voxels for organ in voxel})
    probabilities = torch.zeros(len(organs) + 1, 1, 1, len(voxels))
    for place, voxel in enumerate(voxels):
        for organ, probability in voxel.items():
            probabilities[1 + organs.index(organ), 0, 0, place] = probability
        probabilities[0, 0, 0, place] = 1 - sum(voxel.values())
    measured = {"dice": dict.fromkeys(organs, dice)} if dice is not None else {}
    if temperature is not None:
        measured["temperature"] = dict.fromkeys(organs, temperature)
    profile = PackProfile(name, name, coverage or {}, aware, **measured)
    return PackPrediction(profile, torch.tensor([0, *organs], dtype=torch.int32), probabilities)


def decide(*packs, rule=RULE, familiar=None, anomaly=None, part=None):
    """Organ and score of every voxel."""
    context = ScanContext(
        None if part is None else torch.tensor([part]),
        None if anomaly is None else torch.full((1, 1, 1), float(anomaly)),
        familiar or {},
    )
    found = merge_predictions(rule, packs, context, Nesting({}))
    return list(zip(found.organ.flatten().tolist(), found.score.flatten().tolist(), strict=True))


def seen_and_missed(**known):
    """One pack sees the liver and another, as sure, does not."""
    return pack("a", [{LIVER: 0.8}], **known), pack("b", [{LIVER: 0.2}], dice=0.8)


# Reliability


def test_a_pack_that_never_found_the_organ_hardly_counts():
    never, always = pack("a", [{LIVER: 0.02}], dice=0.0), pack("b", [{LIVER: 0.97}], dice=0.95)
    ((found, score),) = decide(never, always)
    assert found == LIVER
    assert score > 0.9


@pytest.mark.parametrize(("dice", "organ"), [(0.9, LIVER), (0.7, 0)])
def test_of_two_packs_that_differ_the_more_reliable_decides(dice, organ):
    ((found, _),) = decide(*seen_and_missed(dice=dice))
    assert found == organ


def test_reliability_weighs_by_the_odds_of_dice():
    ((_, score),) = decide(pack("a", [{LIVER: 0.9}], dice=0.9), pack("b", [{LIVER: 0.6}], dice=0.8))
    assert score == pytest.approx((9 * 0.9 + 4 * 0.6) / 13)


def test_a_pack_that_was_not_measured_counts_as_the_best_that_was():
    measured, unknown = pack("a", [{LIVER: 0.9}], dice=0.8), pack("b", [{LIVER: 0.5}])
    assert decide(measured, unknown)[0][1] == pytest.approx(0.7)


def test_a_measured_dice_of_one_does_not_silence_the_others():
    ((_, score),) = decide(pack("a", [{LIVER: 0.9}], dice=1.0), pack("b", [{LIVER: 0.5}], dice=0.5))
    assert score < 0.9


# Calibration


def test_a_pack_that_is_too_sure_is_taken_for_less_sure():
    sure, modest = pack("a", [{LIVER: 0.96}], temperature=4.0), pack("b", [{LUNG: 0.75}], temperature=1.0)
    assert decide(sure, modest)[0][0] == LUNG
    assert decide(sure, modest, rule=replace(RULE, calibration=False))[0][0] == LIVER


@settings(max_examples=80, deadline=None)
@given(
    st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
    st.sampled_from([0.25, 0.8, 1.0, 4.0]),
    st.floats(0.0, 1.0),
    st.sampled_from([None, 0.0, 0.6, 1.0]),
)
def test_a_pack_alone_decides_as_it_does_uncalibrated(voxel, temperature, familiarity, anomaly):
    alone = pack("a", [{LIVER: voxel[0], LUNG: voxel[1]}], dice=0.3, temperature=temperature)
    best, organ = max((voxel[0], LIVER), (voxel[1], -LUNG))
    ((found, _),) = decide(alone, familiar={"a": familiarity}, anomaly=anomaly)
    background = 1 - sum(voxel)
    if abs(best - background) > 1e-4 and abs(voxel[0] - voxel[1]) > 1e-4:
        assert found == (abs(organ) if best > background else 0)


@settings(max_examples=80, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_whether_a_pack_that_does_not_vote_was_asked_changes_no_bit(probability, dice, familiarity):
    own = pack("a", [{LIVER: probability, LUNG: 0.0}], dice=dice)
    without_a_vote = pack("b", [{LUNG: 0.0}], dice=0.6)
    known = {"rule": WeightedVote(), "familiar": {"a": familiarity, "b": 1.0}, "part": CHEST}
    assert decide(own, without_a_vote, **known) == decide(own, **known)


# Familiarity


def test_in_a_scan_of_one_pack_s_domain_others_take_none_of_its_organs_away():
    own, late = pack("own", [{LIVER: 0.7}], dice=0.8), pack("late", [{LIVER: 0.02}], dice=0.9)
    assert decide(own, late)[0][0] == 0
    assert decide(own, late, familiar={"own": 1.0, "late": 0.01})[0][0] == LIVER
    rival = pack("late", [{LUNG: 0.95}], dice=0.9)
    assert decide(own, rival)[0][0] == LUNG
    assert decide(own, rival, familiar={"own": 1.0, "late": 0.01})[0][0] == LIVER


def test_a_strange_scan_erases_no_organ_that_one_pack_alone_knows():
    own, late = pack("own", [{LIVER: 0.1}]), pack("late", [{LUNG: 0.7}])
    for familiarity in (0.0, LEAST_TRUST, 1.0):
        assert decide(own, late, familiar={"own": 1.0, "late": familiarity})[0][0] == LUNG


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_more_familiarity_never_costs_a_pack_its_organ(one, other):
    packs = pack("a", [{LIVER: 0.7}], dice=0.8), pack("b", [{LIVER: 0.1}], dice=0.8)
    less, more = sorted((one, other))
    found = [decide(*packs, familiar={"a": each, "b": 0.5})[0][1] for each in (less, more)]
    assert found[0] <= found[1] + 1e-6


# Health


def test_in_a_tumour_the_pack_that_knows_tumours_decides():
    blind, aware = pack("a", [{ESOPHAGUS: 0.1}]), pack("b", [{ESOPHAGUS: 0.7}], aware=True)
    others = [blind, pack("c", [{ESOPHAGUS: 0.1}])]
    assert decide(*others, aware, anomaly=0.0)[0][0] == 0
    assert decide(*others, aware, anomaly=0.9)[0][0] == ESOPHAGUS


def test_a_weak_pack_that_knows_disease_does_not_overrule_healthy_organs_without_a_sign_of_disease():
    healthy, aware = pack("a", [{ESOPHAGUS: 0.9}]), pack("b", [{ESOPHAGUS: 0.2}], aware=True)
    assert decide(healthy, aware, anomaly=0.0)[0][0] == ESOPHAGUS
    assert decide(healthy, aware, familiar={"a": 1.0, "b": 0.02})[0][0] == ESOPHAGUS


def test_without_a_map_a_scan_like_those_of_the_pack_that_knows_disease_counts_as_diseased():
    blind, aware = pack("a", [{ESOPHAGUS: 0.1}]), pack("b", [{ESOPHAGUS: 0.7}], aware=True)
    second = pack("c", [{ESOPHAGUS: 0.1}])
    assert decide(blind, second, aware, familiar={"a": 0.9, "b": 1.0, "c": 0.9})[0][0] == ESOPHAGUS
    assert decide(blind, second, aware, familiar={"a": 1.0, "b": 0.2, "c": 1.0})[0][0] == 0


# Coverage


def test_a_pack_out_of_its_body_part_has_no_vote_and_wins_nothing():
    seeing, blind = pack("a", [{LIVER: 0.6}]), pack("b", [{LIVER: 0.0}], coverage={"head_neck": 1.0})
    assert decide(seeing, blind, part=CHEST)[0] == (LIVER, pytest.approx(0.6))
    assert decide(seeing, blind, part=HEAD)[0][0] == 0
    lone = pack("b", [{LUNG: 0.9}], coverage={"head_neck": 1.0})
    assert decide(pack("a", [{LIVER: 0.1}]), lone, part=CHEST)[0][0] == 0


@pytest.mark.parametrize("term", ["coverage", "reliability", "calibration", "familiarity", "health"])
def test_a_term_that_is_removed_has_no_effect(term):
    """Without what is known of it, the rule decides as without the term."""
    known = {
        "coverage": ({"coverage": {"head_neck": 1.0}}, {}),
        "reliability": ({"dice": 0.2}, {}),
        "calibration": ({"temperature": 4.0}, {}),
        "familiarity": ({}, {"familiar": {"a": 0.01}}),
        "health": ({}, {"anomaly": 1.0}),
    }
    of_pack, of_scan = known[term]
    other = pack("b", [{LIVER: 0.2}], dice=0.8, aware=term == "health")
    with_it = pack("a", [{LIVER: 0.85}], **of_pack)
    without = decide(pack("a", [{LIVER: 0.85}]), other, rule=replace(RULE, health=term != "health"))
    assert decide(with_it, other, part=CHEST, **of_scan) != without
    assert decide(with_it, other, part=CHEST, rule=replace(RULE, **{term: False}), **of_scan) == without
