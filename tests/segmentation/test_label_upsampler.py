"""Labels on the scan's grid are those of all organs interpolated at all voxels."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig
from continual_segment.segmentation import nearby_packs
from continual_segment.segmentation import slab as slab_module
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.label_upsampler import LabelUpsampler
from continual_segment.segmentation.merge import RULES, highest_probability
from continual_segment.segmentation.nearby_packs import NearbyPacks
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.predictions import PackProfile
from continual_segment.segmentation.sampling import Axis, Sampling
from continual_segment.segmentation.slab import Slab
from continual_segment.segmentation.window_accumulator import AccumulatedSlab
from continual_segment.volume import Grid, Volume

NETWORK = NetworkConfig((4, 8), ((3, 3, 3),) * 2, ((1, 1, 1), (2, 2, 2)))
CPU = torch.device("cpu")
EVERYTHING = np.arange(2**16).astype(np.uint16)
IDS = ((3, 1, 7, 20, 21), (1, 9))
lengths = st.integers(1, 12)


def make_packs():
    torch.manual_seed(0)
    return [
        PackDecoder(Decoder(NETWORK, DecoderPlan(("2d",)), len(ids)), ids, CPU, PackProfile(str(number)))
        for number, ids in enumerate(IDS)
    ]


def make_values(packs, shape):
    """Smooth values, so that organs have an inside."""
    coarse = [max(1, -(-n // 4)) for n in shape]
    return [
        functional.interpolate(torch.randn(1, pack.channels, *coarse) * 4, size=shape, mode="trilinear")[0]
        for pack in packs
    ]


@torch.no_grad()
def in_slabs(
    packs, values, shares, shape, heights, rule=highest_probability, scores=False, context=None, nearby=None
):
    """Labels on a grid, from slabs of these heights."""
    depth = values[0].shape[1]
    sampling = shape if isinstance(shape, Sampling) else Sampling(values[0].shape[1:], shape, shape)
    found = LabelUpsampler(rule, sampling, EVERYTHING, scores, nearby)
    start = 0
    while start < depth:
        stop = min(depth, start + heights[start % len(heights)])
        outputs = [
            AccumulatedSlab(
                value[:, start:stop].clone(), None if share is None else share[start:stop].clone()
            )
            for value, share in zip(values, shares, strict=True)
        ]
        slab = Slab(slice(start, stop), packs, outputs, context or ScanContext())
        found.add(slab, slab.merge([rule], nearby=nearby)[0][0])
        for each in outputs:
            each.values.fill_(torch.nan)  # a slab is valid until the next one
        start = stop
    return found


@torch.no_grad()
def everywhere(packs, values, shape, rule=highest_probability):
    """The rule on everything interpolated at every voxel."""
    dense = [functional.interpolate(value[None], size=shape, mode="trilinear")[0] for value in values]
    predictions = [pack.predict(value, None) for pack, value in zip(packs, dense, strict=True)]
    return rule(predictions, ScanContext())


@settings(max_examples=15, deadline=None)
@given(
    old=st.tuples(lengths, lengths, lengths),
    new=st.tuples(lengths, lengths, lengths),
    heights=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    at_once=st.sampled_from([200, 2**24]),
    seed=st.integers(0, 1000),
)
def test_whatever_the_slabs_labels_are_those_of_all_organs_interpolated(old, new, heights, at_once, seed):
    pack = make_packs()[:1]
    torch.manual_seed(seed)
    values = make_values(pack, old)
    before, slab_module.PROBABILITIES_AT_ONCE = slab_module.PROBABILITIES_AT_ONCE, at_once
    try:
        found = in_slabs(pack, values, [None], new, heights)
    finally:
        slab_module.PROBABILITIES_AT_ONCE = before
    np.testing.assert_array_equal(found.organ, everywhere(pack, values, new).organ)


def test_where_two_packs_meet_within_a_cell_few_voxels_differ():
    packs = make_packs()
    torch.manual_seed(0)
    values = make_values(packs, (20, 20, 20))
    found = in_slabs(packs, values, [None, None], (30, 31, 40), [7])
    assert len(np.unique(found.organ)) > 5
    assert np.mean(found.organ == everywhere(packs, values, (30, 31, 40)).organ.numpy()) > 0.999


@pytest.mark.parametrize("rule", RULES)
def test_all_rules_run_only_where_neighbours_differ(rule):
    packs = make_packs()
    torch.manual_seed(1)
    values = make_values(packs, (16, 16, 16))
    asked = []

    def merge(predictions, context):
        asked.append(predictions[0].score.numel())
        return RULES[rule](predictions, context)

    found = in_slabs(packs, values, [None, None], (40, 40, 40), [16], merge)
    expected = everywhere(packs, values, (40, 40, 40), RULES[rule]).organ.numpy()
    assert np.mean(found.organ == expected) > 0.98
    assert sum(asked) < 0.8 * 40**3


def test_scores_are_those_of_the_winners():
    packs = make_packs()
    torch.manual_seed(1)
    values = make_values(packs, (10, 10, 10))
    found = in_slabs(packs, values, [None, None], (25, 25, 25), [4], scores=True)
    expected = everywhere(packs, values, (25, 25, 25))
    assert np.abs(found.score - expected.score.numpy()).mean() < 0.02  # inside organs, those of the corners
    assert not found.score[found.organ == 0].any()


def test_organs_that_are_not_requested_are_background():
    packs = make_packs()
    torch.manual_seed(1)
    values = make_values(packs, (10, 10, 10))
    everything = in_slabs(packs, values, [None, None], (25, 25, 25), [4])
    label_of = np.zeros_like(EVERYTHING)
    label_of[1] = 1
    outputs = [AccumulatedSlab(value, None) for value in values]
    slab = Slab(slice(0, 10), packs, outputs, ScanContext())
    some = LabelUpsampler(highest_probability, Sampling((10, 10, 10), (25,) * 3, (25,) * 3), label_of)
    with torch.no_grad():
        some.add(slab, slab.merge([highest_probability])[0][0])
    np.testing.assert_array_equal(some.organ, np.where(everything.organ == 1, 1, 0))
    assert some.organ.any()


def test_where_no_window_ran_there_is_background():
    packs = make_packs()
    torch.manual_seed(1)
    values = make_values(packs, (10, 10, 10))
    share = torch.ones(10, 10, 10)
    share[5:] = 0
    found = in_slabs(packs, values, [share, share], (20, 20, 20), [10])
    assert found.organ[:9].any()
    assert not found.organ[11:].any()


def test_the_context_is_that_of_the_nearest_prepared_voxel():
    packs = make_packs()
    torch.manual_seed(1)
    values = make_values(packs, (4, 6, 6))
    seen = []

    def merge(predictions, context):
        seen.append(context)
        return highest_probability(predictions, context)

    anomaly = torch.arange(4.0)[:, None, None].expand(4, 6, 6) / 4
    in_slabs(
        packs,
        values,
        [None, None],
        (8, 12, 12),
        [4],
        merge,
        context=ScanContext(torch.arange(4)[:, None, None], anomaly, {"fingerprint": 0.25}),
    )
    of_pixels = [context for context in seen if context.anomaly.shape[1:] == (1, 1)]
    assert of_pixels
    for context in of_pixels:
        np.testing.assert_array_equal(context.body_part / 4, context.anomaly)
        assert context.familiar == {"fingerprint": 0.25}


@given(old=st.integers(1, 40), new=st.integers(1, 40))
def test_an_axis_interpolates_as_torch_does(old, new):
    axis, line = Axis.between(old, new), np.random.default_rng(old).normal(size=old).astype(np.float32)
    ours = line[axis.lower] * (1 - axis.fraction) + line[axis.upper] * axis.fraction
    theirs = functional.interpolate(torch.from_numpy(line)[None, None], size=new, mode="linear")[0, 0]
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@torch.no_grad()
def test_a_box_of_the_slices_gives_the_labels_and_scores_that_it_has_in_the_whole():
    """The box ends within pixels of the scan, not between them."""
    packs = make_packs()
    values = make_values(packs, (4, 16, 20))
    shape, box = (4, 17, 23), (slice(3, 14), slice(5, 17))
    found = []
    for part in ((slice(None), slice(None)), box):
        sampling = Sampling((4, 16, 20), shape, shape)
        labels = LabelUpsampler(highest_probability, sampling, EVERYTHING, True)
        outputs = [AccumulatedSlab(value[:, :, *part].clone(), None) for value in values]
        slab = Slab(slice(0, 4), packs, outputs, ScanContext(), part)
        labels.add(slab, slab.merge([highest_probability])[0][0])
        found.append(labels)
    whole, boxed = found
    inside = np.s_[:, 5:13, 8:17]  # a pixel or more within the box: at its end the last voxel goes on
    np.testing.assert_array_equal(boxed.organ[inside], whole.organ[inside])
    np.testing.assert_allclose(boxed.score[inside], whole.score[inside], atol=1e-3)
    assert not boxed.organ[:, :2].any()


def test_labels_on_shifted_slices_are_those_at_their_pixels():
    """A quarter of a pixel and a whole one per slice: every other pixel of a grid twice as fine."""
    packs = make_packs()
    torch.manual_seed(1)
    values = make_values(packs, (6, 10, 10))
    fine = in_slabs(packs, values, [None, None], (6, 40, 40), [4], scores=True)
    shifts = np.array([[0.25 + z, 2.25] for z in range(6)])
    sampling = Sampling((6, 10, 10), (6, 20, 20), (6, 12, 14), shifts)
    found = in_slabs(packs, values, [None, None], sampling, [4], scores=True)
    for z in range(6):
        own = np.s_[z, 1 + 2 * z : 1 + 2 * z + 24 : 2, 5 : 5 + 28 : 2]
        np.testing.assert_array_equal(found.organ[z], fine.organ[own])
        np.testing.assert_allclose(found.score[z], fine.score[own], atol=1e-3)
    assert len(np.unique(found.organ)) > 2


def test_voxels_that_were_not_scanned_are_background_and_not_computed():
    packs = make_packs()
    torch.manual_seed(1)
    values = make_values(packs, (6, 10, 10))
    grid = Grid((6, 20, 20), np.eye(4))
    scanned = np.zeros(grid.shape, bool)
    for z in range(6):
        scanned[z, z : z + 12] = True
    asked = []

    def merge(predictions, context):
        asked.append(predictions[0].score.numel() if predictions[0].score.shape[1:] == (1, 1) else 0)
        return highest_probability(predictions, context)

    whole = in_slabs(packs, values, [None, None], grid.shape, [4], merge, scores=True)
    of_whole = sum(asked)
    scan = Volume(np.zeros(grid.shape, np.int16), grid, scanned)
    sampling = Sampling.of(scan, (6, 10, 10), grid)
    found = in_slabs(packs, values, [None, None], sampling, [4], merge, scores=True)
    np.testing.assert_array_equal(found.organ, np.where(scanned, whole.organ, 0))
    np.testing.assert_array_equal(found.score, np.where(scanned, whole.score, 0))
    assert sum(asked) - of_whole < 0.8 * of_whole


MANY_IDS = ((3, 1, 7, 20, 21), (1, 9), (114, 9), (50,), (131, 2), (114, 131, 5))
NESTING = Nesting({131: 50, 114: 7})


def make_many_packs(draw):
    """Packs that share organs and parts of organs; some are disease-aware, some cover one body part alone."""
    torch.manual_seed(0)
    packs = []
    for number, ids in enumerate(MANY_IDS):
        coverage = {"chest": 1.0, "abdomen": draw(st.sampled_from([0.0, 0.3, 1.0]))}
        dice = draw(st.sampled_from([{}, dict.fromkeys(ids, 0.6), dict.fromkeys(ids, 0.9)]))
        profile = PackProfile(str(number), str(number), coverage, draw(st.booleans()), dice=dice)
        packs.append(PackDecoder(Decoder(NETWORK, DecoderPlan(("2d",)), len(ids)), ids, CPU, profile))
    return packs


@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000), pixels=st.sampled_from([1, 50, 2000]))
def test_packs_without_an_organ_nearby_change_neither_labels_nor_scores(data, seed, pixels):
    packs = make_many_packs(data.draw)
    torch.manual_seed(seed)
    values, shares = make_values(packs, (9, 10, 11)), []
    for pack, value in zip(packs, values, strict=True):
        if not pack.accumulates_features:
            value[0] += data.draw(st.sampled_from([0.0, 3.0, 6.0]))
        ran = (torch.rand(9, 10, 11) * 3).clamp(0, 1) * (torch.rand(9, 1, 1) > 0.3)
        shares.append(data.draw(st.sampled_from([None, ran])))
        if shares[-1] is not None:
            value *= shares[-1] > 0
    context = ScanContext.of(np.random.default_rng(seed).integers(1, 3, 9))
    context = replace(context, familiar={"0": data.draw(st.sampled_from([1.0, 0.1, 1e-5]))})
    name, asked = data.draw(st.sampled_from(["consensus", "weighted"])), []

    def rule(predictions, context):
        asked.append(len(predictions) * predictions[0].score.numel())
        return merge_predictions(RULES[name], predictions, context, NESTING)

    def run(nearby):
        asked.clear()
        return in_slabs(packs, values, shares, (17, 24, 21), [4, 2], rule, True, context, nearby), sum(asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearby_packs, "PIXELS_OF_A_QUESTION", pixels)
        (expected, all_asked), (found, few_asked) = run(None), run(NearbyPacks(packs, NESTING))
    np.testing.assert_array_equal(found.organ, expected.organ)
    np.testing.assert_array_equal(found.score, expected.score)
    assert few_asked <= all_asked


def test_a_pack_far_from_its_organs_is_not_asked(monkeypatch):
    monkeypatch.setattr(nearby_packs, "PIXELS_OF_A_QUESTION", 1)
    packs = make_packs()
    torch.manual_seed(2)
    values = make_values(packs, (8, 12, 12))
    values[1][0] += 100  # background everywhere
    values[1][:, :, :, :3] = torch.tensor([-100.0, 100.0, 0.0])[:, None, None, None]
    asked = []

    def rule(predictions, context):
        asked.append((len(predictions), predictions[0].score.numel()))
        return RULES["consensus"](predictions, context)

    merge = partial(merge_predictions, rule)
    in_slabs(packs, values, [None, None], (8, 40, 40), [8], merge, nearby=NearbyPacks(packs, Nesting({})))
    assert {count for count, _ in asked} == {1, 2}
