"""Where packs meet."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.organs import BODY_PARTS, UNKNOWN_PART
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.merge import RULES, entropy, highest_probability, only
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.predictions import PackPrediction, PackProfile

ESOPHAGUS, LUNG, LIVER, AORTA, ARCH, ASCENDING = 42, 13, 5, 7, 115, 113
CHEST, HEAD = BODY_PARTS.index("chest"), BODY_PARTS.index("head_neck")
EVERYWHERE = dict.fromkeys(BODY_PARTS, 1.0)
COVERED = {"chest": 0.9, "head_neck": 0.1}
NOWHERE = ScanContext()


def pack(voxels, organs=None, name="", coverage=None, aware=False, fingerprint=None):
    """A pack's prediction; each voxel is a dict organ -> probability, the rest is background."""
    organs = organs or sorted({organ for voxel in voxels for organ in voxel}) or [1]
    probabilities = torch.zeros(len(organs) + 1, 1, 1, len(voxels))
    for place, voxel in enumerate(voxels):
        for organ, probability in voxel.items():
            probabilities[1 + organs.index(organ), 0, 0, place] = probability
        probabilities[0, 0, 0, place] = 1 - sum(voxel.values())
    profile = PackProfile(name, name if fingerprint is None else fingerprint, coverage or {}, aware)
    ids = torch.tensor([0, *organs], dtype=torch.int32)
    return PackPrediction(profile, ids, probabilities)


def context(part=None, anomaly=None):
    """One slice in a body part, with this probability of disease in all voxels."""
    return ScanContext(
        None if part is None else torch.full((1, 1, 1), part),
        None if anomaly is None else torch.full((1, 1, 1), float(anomaly)),
    )


def decide(rule, *packs, where=NOWHERE, nesting=None):
    """Organ, score and winning pack of every voxel."""
    found = merge_predictions(RULES[rule], packs, where, nesting)
    return list(zip(*(part.flatten().tolist() for part in found), strict=True))


def organs(rule, *packs, where=NOWHERE, nesting=None):
    return [organ for organ, _, _ in decide(rule, *packs, where=where, nesting=nesting)]


every_rule = pytest.mark.parametrize("rule", RULES)


@every_rule
def test_a_voxel_is_background_where_all_packs_say_so(rule):
    assert decide(rule, pack([{LIVER: 0.1}]), pack([{LUNG: 0.2}])) == [(0, 0.0, -1)]


@every_rule
def test_a_single_pack_that_knows_nothing_of_coverage_is_taken_at_its_word(rule):
    found = decide(rule, pack([{LIVER: 0.75}, {LIVER: 0.25}]), where=context(CHEST))
    assert [(organ, number) for organ, _, number in found] == [(LIVER, 0), (0, -1)]
    assert found[0][1] == pytest.approx(0.75)


@every_rule
def test_a_probability_of_exactly_one_wins_over_a_lesser_one(rule):
    assert organs(rule, pack([{LIVER: 1.0}]), pack([{LUNG: 0.9}])) == [LIVER]


@every_rule
def test_between_equals_the_lower_organ_id_wins(rule):
    for packs in itertools.permutations([pack([{9: 0.75}]), pack([{2: 0.75}]), pack([{7: 0.75}])]):
        assert organs(rule, *packs) == [2]


def test_between_equal_predictions_the_lower_fingerprint_wins():
    one, other = pack([{LIVER: 0.75}], fingerprint="b"), pack([{LIVER: 0.75}], fingerprint="a")
    assert decide("monotone", one, other) == [(LIVER, 0.75, 1)]
    assert decide("monotone", other, one) == [(LIVER, 0.75, 0)]


def test_the_surest_pack_wins():
    assert decide("probability", pack([{9: 0.6}]), pack([{2: 0.55}]), pack([{7: 0.75}])) == [(7, 0.75, 2)]


# Body part


@pytest.mark.parametrize(
    ("rule", "survives"),
    [
        ("probability", True),
        ("ensemble", True),
        ("literal", True),
        ("restated", True),
        ("monotone", True),
        ("threshold", False),
        ("background-aware", False),
    ],
)
@pytest.mark.parametrize("probability", [0.6, 0.9, 1.0])
def test_a_lone_prediction_out_of_its_region(rule, survives, probability):
    """The published rule cannot drop it: M is never below a half, and nothing else is there to win."""
    alone = pack([{LUNG: probability}], coverage={"chest": 1.0})
    broad = pack([{LIVER: 0.02}], coverage=EVERYWHERE)
    assert organs(rule, alone, broad, where=context(HEAD)) == [LUNG if survives else 0]


@every_rule
@pytest.mark.parametrize(
    ("coverage", "part"), [({}, HEAD), ({"chest": 1.0}, UNKNOWN_PART), ({"chest": 0.0}, HEAD)]
)
def test_an_unknown_part_and_an_unmeasured_coverage_restrict_nothing(rule, coverage, part):
    limited = pack([{LUNG: 0.6}], coverage=coverage)
    assert organs(rule, limited, where=context(part)) == [LUNG]
    free = decide(rule, pack([{LUNG: 0.6}]), pack([{LIVER: 0.7}]))
    bound = decide(rule, limited, pack([{LIVER: 0.7}], coverage=coverage), where=context(part))
    assert [organ for organ, _, _ in bound] == [organ for organ, _, _ in free]


@pytest.mark.parametrize("rule", ["literal", "restated", "monotone", "threshold", "background-aware"])
def test_a_pack_at_home_wins_over_a_surer_one_that_is_not(rule):
    at_home = pack([{LUNG: 0.85}], coverage=COVERED)
    abroad = pack([{LIVER: 0.95}], coverage={"abdomen": 1.0})
    assert organs(rule, at_home, abroad, where=context(CHEST)) == [LUNG]


def test_less_confidence_can_win_by_the_published_rule_alone():
    """-x log x falls again below 1/e."""
    weak = pack([{LUNG: 0.3, 14: 0.25, 15: 0.25}], coverage={"chest": 1})
    sure = pack([{LIVER: 1.0}], coverage={"chest": 1})
    nowhere_covered = context(HEAD)
    assert organs("literal", weak, sure, where=nowhere_covered) == [LUNG]
    assert organs("restated", weak, sure, where=nowhere_covered) == [LUNG]
    assert organs("monotone", weak, sure, where=nowhere_covered) == [LIVER]


def test_the_published_coverage_sums_to_one_and_ours_peaks_at_one():
    profile = PackProfile(coverage={"chest": 3.0, "abdomen": 1.0})
    assert profile.shares == (0, 0.25, 0.75, 0)
    assert profile.relative_coverage == (0, pytest.approx(1 / 3), 1, 0)
    assert PackProfile(coverage=EVERYWHERE).relative_coverage == (1, 1, 1, 1)


# Disease


def esophagus_by_three(tumour):
    """Two packs that take the tumour for background, and one that has learned from tumours."""
    base, chest = (0.55, 0.52) if tumour else (0.9, 0.95)
    return (
        pack([{ESOPHAGUS: base, LUNG: 0.01}], name="base", coverage=EVERYWHERE),
        pack([{ESOPHAGUS: chest}], name="chest", coverage=COVERED),
        pack([{ESOPHAGUS: 0.8}], name="eso", coverage=COVERED, aware=True),
    )


@every_rule
@pytest.mark.parametrize("anomaly", [None, 0.0, 0.6, 1.0])
def test_an_esophagus_that_all_see_stays_one(rule, anomaly):
    for tumour in (False, True):
        assert organs(rule, *esophagus_by_three(tumour), where=context(CHEST, anomaly)) == [ESOPHAGUS]


def test_in_a_tumour_the_pack_that_knows_tumours_outweighs_those_that_see_none():
    """The broad pack sees lung there, and is surer of it than the specialist of the esophagus."""
    base = pack([{LUNG: 0.85}], [LUNG, ESOPHAGUS])
    eso = pack([{ESOPHAGUS: 0.8}], coverage=COVERED, aware=True)
    for rule in ("restated", "monotone"):
        assert organs(rule, base, eso, where=context(CHEST, 0.0)) == [LUNG]
        assert organs(rule, base, eso, where=context(CHEST, 0.9)) == [ESOPHAGUS]
    assert organs("literal", base, eso, where=context(CHEST, 0.9)) == [LUNG]
    assert organs("ensemble", base, eso, where=context(CHEST, 0.9)) == [LUNG]


def test_the_specialist_alone_can_overrule_background_in_a_tumour():
    """By mean or by background's product two blind packs win; distrusted in a tumour, they do not."""
    blind = [pack([{ESOPHAGUS: 0.4}], name=name, coverage=EVERYWHERE) for name in ("a", "b")]
    eso = pack([{ESOPHAGUS: 0.7}], name="eso", coverage=EVERYWHERE, aware=True)
    found = decide("background-aware", *blind, eso, where=context(CHEST, 1.0))
    assert found == [(ESOPHAGUS, pytest.approx(0.7), 2)]


@every_rule
def test_disease_everywhere_erases_no_organ_that_no_aware_pack_knows(rule):
    lung = pack([{LUNG: 0.8}], coverage=EVERYWHERE)
    eso = pack([{ESOPHAGUS: 0.05}], coverage=COVERED, aware=True)
    assert organs(rule, lung, eso, where=context(CHEST, 1.0)) == [LUNG]


# Each rule by its own formula


def test_the_ensemble_averages_over_all_packs_that_know_the_organ():
    three = (pack([{ESOPHAGUS: 0.9}]), pack([{ESOPHAGUS: 0.3}]), pack([{LUNG: 0.01}]))
    assert decide("ensemble", *three) == [(ESOPHAGUS, pytest.approx(0.6), 0)]
    lung = pack([{LUNG: 0.7}], [LUNG])
    assert organs("ensemble", *three[:2], lung) == [LUNG]  # 0.7 beats a mean of 0.6


@pytest.mark.parametrize("anomaly", [0.0, 0.4])
def test_the_published_rule_is_the_published_formula(anomaly):
    given_ = [(LUNG, 0.8, {"chest": 0.6, "abdomen": 0.4}), (LIVER, 0.9, {"abdomen": 0.9, "chest": 0.1})]
    entropies = {}
    for organ, probability, coverage in given_:
        weight = 1 - 0.5 * (1 - coverage["chest"] + anomaly * coverage["chest"])
        entropies[organ] = -(weight * probability) * math.log(weight * probability)
    packs = [pack([{organ: y}], coverage=coverage) for organ, y, coverage in given_]
    assert organs("literal", *packs, where=context(CHEST, anomaly)) == [min(entropies, key=entropies.get)]
    assert float(entropy(torch.tensor(math.exp(-1)))) == pytest.approx(math.exp(-1))


def test_background_competes_with_what_packs_agree_on():
    """Two packs that each prefer background see the same organ together."""
    two = [pack([{ESOPHAGUS: 0.45}], name=name) for name in "ab"]
    assert decide("background-aware", *two) == [(ESOPHAGUS, pytest.approx(1 - 0.55**2), 0)]
    assert organs("probability", *two) == [0]
    apart = (pack([{ESOPHAGUS: 0.45}]), pack([{LUNG: 0.45}]))
    assert organs("background-aware", *apart) == [LUNG]  # 0.45 each against 0.55 squared; the lower id
    half = pack([{ESOPHAGUS: 0.9}], coverage={"chest": 1.0, "head_neck": 0.5})
    assert organs("background-aware", half, where=context(HEAD)) == [0]  # 0.45 against 0.55


def test_packs_that_know_an_organ_vote_on_it():
    seeing, blind = pack([{LIVER: 0.9}], name="a"), pack([{LIVER: 0.3}], name="b")
    assert decide("consensus", seeing, blind)[0][:2] == (LIVER, pytest.approx(0.6))
    assert organs("consensus", seeing, blind, pack([{LIVER: 0.1}], name="c")) == [0]
    elsewhere = pack([{LIVER: 0.1}], name="c", coverage={"head_neck": 1.0})
    assert organs("consensus", seeing, blind, elsewhere, where=context(CHEST)) == [LIVER]


def test_in_a_vote_the_pack_that_knows_the_disease_counts_more_where_it_covers():
    others = [pack([{ESOPHAGUS: 0.4}, {ESOPHAGUS: 0.9}], name=name, coverage=EVERYWHERE) for name in "ab"]
    aware = pack([{ESOPHAGUS: 0.7}, {ESOPHAGUS: 0.2}], name="c", coverage={"chest": 1.0}, aware=True)
    assert organs("consensus", *others, aware, where=context(CHEST)) == [ESOPHAGUS, 0]
    assert organs("consensus", *others, aware, where=context(HEAD)) == [0, ESOPHAGUS]


def test_in_a_vote_others_keep_a_quarter_beside_the_pack_that_knows_the_disease():
    other, aware = pack([{ESOPHAGUS: 0.9}], name="a"), pack([{ESOPHAGUS: 0.45}], name="b", aware=True)
    ((organ, score, _),) = decide("consensus", other, aware)
    assert (organ, score) == (ESOPHAGUS, pytest.approx((0.45 + 0.25 * 0.9) / 1.25))


def test_where_a_disease_aware_pack_sees_its_organ_others_hardly_see_another():
    """A tumour looks like what lies beside the organ to packs that know none."""
    surer = pack([{LUNG: 0.85}], [LUNG])
    aware = pack([{ESOPHAGUS: 0.6}], [ESOPHAGUS], coverage=COVERED, aware=True)
    assert organs("consensus", surer, aware, where=context(CHEST)) == [ESOPHAGUS]  # 0.6 against 0.85 x 0.4
    assert organs("consensus", surer, aware, where=context(HEAD)) == [LUNG]  # it covers no heads
    unsure = pack([{ESOPHAGUS: 0.4}], [ESOPHAGUS], coverage=COVERED, aware=True)
    assert organs("consensus", surer, unsure, where=context(CHEST)) == [LUNG]  # it sees background
    both = pack([{LUNG: 0.85}], [LUNG], aware=True)
    assert organs("consensus", both, aware, where=context(CHEST)) == [LUNG]  # equals


def test_a_rule_can_be_applied_to_one_pack_alone():
    packs = (pack([{LIVER: 0.9}, {}], name="a"), pack([{LUNG: 0.6}, {LUNG: 0.3}], name="b"))
    found = only("b", highest_probability)(packs, NOWHERE)
    assert found.organ.flatten().tolist() == [LUNG, 0]
    assert found.pack.flatten().tolist() == [1, -1]


# Laws

voxel = st.dictionaries(st.integers(1, 4), st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.6]), max_size=2).filter(
    lambda each: sum(each.values()) <= 1
)
profile = st.tuples(
    st.dictionaries(st.sampled_from(BODY_PARTS), st.sampled_from([0.0, 0.2, 1.0])), st.booleans()
)


@every_rule
@settings(max_examples=60, deadline=None)
@given(
    packs=st.lists(st.tuples(st.lists(voxel, min_size=3, max_size=3), profile), min_size=1, max_size=4),
    part=st.sampled_from([None, UNKNOWN_PART, CHEST, HEAD]),
    anomaly=st.sampled_from([None, 0.0, 0.5, 1.0]),
    nested=st.booleans(),
)
def test_the_order_of_packs_decides_nothing(rule, packs, part, anomaly, nested):
    predictions = [
        pack(voxels, [1, 2, 3, 4], str(index), coverage, aware)
        for index, (voxels, (coverage, aware)) in enumerate(packs)
    ]
    nesting = Nesting({2: 1, 4: 3}) if nested else None
    results = []
    for order in itertools.permutations(range(len(predictions))):
        found = decide(rule, *(predictions[i] for i in order), where=context(part, anomaly), nesting=nesting)
        results.append([(organ, score, order[who] if who >= 0 else -1) for organ, score, who in found])
    assert all(result == results[0] for result in results)
    for place, (organ, score, who) in enumerate(results[0]):
        assert 0 <= score <= 1
        assert (organ == 0) == (who == -1) == (score == 0)
        assert organ == 0 or any(organ in voxels[place] or organ in (1, 3) for voxels, _ in packs)


# Nested organs

BLOOD = Nesting({ARCH: AORTA, ASCENDING: AORTA})


@every_rule
def test_an_organ_and_its_part_share_a_voxel_where_a_rival_would_lose(rule):
    whole = pack([{AORTA: 0.95}, {AORTA: 0.9}, {AORTA: 0.05}], name="base", coverage=EVERYWHERE)
    parts = pack([{ARCH: 0.8}, {ARCH: 0.1}, {ARCH: 0.8}], [ARCH, ASCENDING], "chest", COVERED)
    voting = ("consensus", "weighted")  # the pack that knows the whole aorta votes against
    last = 0 if rule in voting else ARCH
    assert organs(rule, whole, parts, where=context(CHEST), nesting=BLOOD) == [ARCH, AORTA, last]
    if rule != "literal":  # whose coverage of a broad pack is low everywhere
        assert organs(rule, whole, parts, where=context(CHEST))[0] == AORTA  # without layers they fight


@every_rule
def test_a_part_speaks_for_its_whole_against_the_rest_of_the_body(rule):
    whole, heart = pack([{AORTA: 0.4, LUNG: 0.55}], name="a"), pack([{ARCH: 0.9}], name="b")
    assert organs(rule, whole, heart, nesting=BLOOD) == [ARCH]


def test_two_parts_of_one_pack_are_one_whole():
    """Each alone is less probable than background; the whole is not."""
    parts = pack([{ARCH: 0.3, ASCENDING: 0.3}], name="chest")
    whole = pack([{AORTA: 0.1}], name="base")
    assert organs("probability", parts, whole, nesting=BLOOD) == [AORTA]
    assert organs("probability", parts, whole) == [0]


def test_packs_that_know_no_part_do_not_argue_about_parts():
    """The whole is sure, the part is not: background of the part's own pack decides about it alone."""
    whole, parts = pack([{AORTA: 0.99}], name="base"), pack([{ARCH: 0.3}], name="chest")
    assert organs("background-aware", whole, parts, nesting=BLOOD) == [AORTA]


def test_chains_are_followed_down_to_the_smallest_part():
    chain = Nesting({2: 1, 3: 2})
    assert chain.depth == 2
    assert chain.chain(3) == [1, 2, 3]
    packs = [pack([{organ: 0.9}], name=str(organ)) for organ in (1, 2, 3)]
    for count, organ in ((1, 1), (2, 2), (3, 3)):
        assert organs("probability", *packs[:count], nesting=chain) == [organ]
    assert organs("probability", packs[2], nesting=chain) == [3]


def test_today_s_rule_is_the_plain_maximum():
    predictions = (pack([{LIVER: 0.6}]), pack([{LUNG: 0.7}]))
    found = highest_probability(predictions, NOWHERE)
    assert (found.organ.item(), found.score.item()) == (LUNG, pytest.approx(0.7))
