"""Slab by slab gives what the whole volume at once would give."""

import copy
import itertools

import numpy as np
import pytest
import torch

from continual_segment.data.intensity import Intensity
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder
from continual_segment.organs import BODY_PARTS, UNKNOWN_PART
from continual_segment.segmentation import ScanContext, SegmentConfig, window_accumulator
from continual_segment.segmentation import slab as slab_module
from continual_segment.segmentation.merge import highest_probability, only
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.padded_scan import WHOLE, PaddedScan
from continual_segment.segmentation.predictions import PackProfile
from continual_segment.segmentation.sliding_window import SlidingWindow, count_windows
from continual_segment.segmentation.windows import gaussian_weights, window_starts

WINDOW = (8, 16, 16)
IDS = ((5, 2, 9), (2, 40_000))


class CountingEncoder(GeneralEncoder):
    calls = 0

    def forward(self, window):
        self.calls += 1
        return super().forward(window)


@pytest.fixture
def encoder(preset):
    torch.manual_seed(0)
    return CountingEncoder(preset.network).freeze()


@pytest.fixture
def packs(preset):
    """Two packs of random weights that share organ 2."""
    torch.manual_seed(1)
    return [
        PackDecoder(
            Decoder(preset.network, DecoderPlan(("2d", "3d")), len(ids)).eval(),
            ids,
            torch.device("cpu"),
            PackProfile(str(number)),
        )
        for number, ids in enumerate(IDS)
    ]


def make_scan(*shape):
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def padded(voxels, window_hu=(-1.0, 1.0)):
    intensity = Intensity.window(*window_hu).fitted()
    return PaddedScan(voxels, WINDOW, intensity)


@torch.no_grad()
def by_rules(voxels, encoder, packs, rules, overlap=0.5, context=None, done=None, **settings):
    """Per rule, organ and score of every voxel; `done` gets the numbers of windows."""
    config = SegmentConfig(overlap=overlap, **{"windows_at_once": 1} | settings)
    sliding = SlidingWindow(padded(voxels), encoder, packs, context=context, config=config)
    advance = (done if done is not None else []).append
    found = [[decision for decision, _ in slab.merge(rules)] for slab in sliding.slabs(advance)]
    return [
        tuple(torch.cat([slab[rule][part] for slab in found]).numpy() for part in (0, 1))
        for rule in range(len(rules))
    ]


def run(voxels, encoder, packs, overlap=0.5, **settings):
    return by_rules(voxels, encoder, packs, [highest_probability], overlap, **settings)[0]


@torch.no_grad()
def whole_volume(voxels, encoder, packs, overlap):
    """The same windows, but every class of every pack kept for the whole volume."""
    weights = torch.from_numpy(gaussian_weights(WINDOW))
    starts = [window_starts(n, w, overlap) for n, w in zip(voxels.shape, WINDOW, strict=True)]
    totals = [torch.zeros(len(pack.organ_ids), *voxels.shape) for pack in packs]
    weight = torch.zeros(voxels.shape)
    for corner in itertools.product(*starts):
        place = tuple(slice(at, at + size) for at, size in zip(corner, WINDOW, strict=True))
        features = encoder(torch.from_numpy(voxels[place])[None, None])
        weight[place] += weights
        for pack, total in zip(packs, totals, strict=True):
            total[(slice(None), *place)] += pack.decoder(features)[0] * weights
    organ, score = np.zeros(voxels.shape, int), np.zeros(voxels.shape, np.float32)
    for pack, total in zip(packs, totals, strict=True):
        best, channel = (total / weight).softmax(0).max(0)
        found, sure = pack.organ_ids[channel].numpy(), best.numpy()
        wins = (found > 0) & ((organ == 0) | (sure > score) | ((sure == score) & (found < organ)))
        organ[wins], score[wins] = found[wins], sure[wins]
    return organ, score


@pytest.fixture
def single_precision(monkeypatch):
    """Sums as exact as the networks, so that results can be compared voxel by voxel."""
    monkeypatch.setattr(window_accumulator, "STORED_AS", torch.float32)


@pytest.mark.parametrize("shape", [(8, 16, 16), (29, 16, 35), (21, 30, 19)])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 0.7])
def test_slabs_give_the_labels_of_the_whole_volume_at_once(shape, overlap, encoder, packs, single_precision):
    voxels = make_scan(*shape)
    organs, scores = run(voxels, encoder, packs, overlap)
    expected, sure = whole_volume(voxels, encoder, packs, overlap)
    assert len(np.unique(expected)) > 3  # the test sees several organs of both packs
    np.testing.assert_array_equal(organs, expected)
    np.testing.assert_allclose(scores, sure, atol=1e-5)


@pytest.mark.parametrize("at_once", [2, 3, 100])
def test_windows_that_pass_together_give_what_they_give_in_turn(at_once, encoder, packs):
    voxels = make_scan(21, 30, 40)
    organs, scores = run(voxels, encoder, packs, windows_at_once=at_once)
    expected, sure = run(voxels, encoder, packs)
    assert np.mean(organs == expected) > 0.9999  # rounding may turn a tie
    np.testing.assert_allclose(scores, sure, atol=1e-3)


def test_the_number_of_threads_decides_next_to_nothing(encoder, packs):
    voxels = make_scan(20, 32, 32)
    expected, _ = run(voxels, encoder, packs)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found, _ = run(voxels, encoder, packs)
    finally:
        torch.set_num_threads(before)
    assert np.mean(found == expected) >= 1 - 1e-4


def test_the_order_of_packs_decides_nothing(encoder, packs):
    voxels = make_scan(20, 20, 20)
    for one, other in zip(run(voxels, encoder, packs), run(voxels, encoder, packs[::-1]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_several_rules_give_what_each_gives_alone(encoder, packs):
    voxels = make_scan(20, 20, 20)
    rules = [only(name, highest_probability) for name in ("0", "1")]
    merged, *alone = by_rules(voxels, encoder, packs, [highest_probability, *rules])
    np.testing.assert_array_equal(merged[0], run(voxels, encoder, packs)[0])
    for pack, found in zip(packs, alone, strict=True):
        np.testing.assert_array_equal(found[0], run(voxels, encoder, [pack])[0])


@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_encoder_runs_once_per_window_whatever_the_number_of_packs(count, encoder, packs):
    voxels, done = make_scan(20, 16, 24), []
    several = [copy.copy(pack) for pack in packs * 3][:count]
    by_rules(voxels, encoder, several, [highest_probability] * 3, done=done)
    assert encoder.calls == count_windows(voxels.shape, WINDOW, 0.5) == 4 * 1 * 2
    assert sum(done) == encoder.calls


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1, 1), (30, 4, 16), (8, 40, 3)])
def test_a_scan_smaller_than_a_window_is_segmented_with_air_around_it(
    shape, encoder, packs, single_precision
):
    voxels = make_scan(*shape)
    organs, scores = run(voxels, encoder, packs)
    assert organs.shape == scores.shape == shape
    scan = padded(voxels)
    with_air = scan[slice(0, scan.shape[0])]
    expected, _ = whole_volume(with_air, encoder, packs, 0.5)
    np.testing.assert_array_equal(organs, expected[scan.inside])
    np.testing.assert_array_equal(with_air[scan.inside], voxels)
    assert np.count_nonzero(with_air != -1) == np.count_nonzero(voxels != -1)


def test_outputs_exist_for_the_height_of_one_window_and_probabilities_for_few_lines(
    encoder, packs, monkeypatch
):
    monkeypatch.setattr(
        slab_module, "PROBABILITIES_AT_ONCE", 7 * 100
    )  # seven channels in both packs together
    seen = []

    def merge(predictions, context):
        seen.append(predictions[0].probabilities[0].numel())
        assert {pack.accumulator.total.shape[1] for pack in packs} == {WINDOW[0]}
        return highest_probability(predictions, context)

    by_rules(make_scan(200, 16, 16), encoder, packs, [merge])
    assert max(seen) <= 100
    assert sum(seen) == 200 * 16 * 16  # every voxel once
    assert not any(hasattr(pack, "accumulator") for pack in packs)  # nothing is kept between scans


@pytest.mark.parametrize("organs", [2, 40])
def test_a_pack_keeps_as_many_channels_as_it_has_features_at_most(organs, preset):
    decoder = Decoder(preset.network, DecoderPlan(("2d", "3d")), organs)
    pack = PackDecoder(decoder, range(1, organs + 1), torch.device("cpu"))
    pack.begin(torch.zeros(WINDOW))
    assert pack.accumulator.channels == min(organs + 1, preset.network.features[0])


@pytest.mark.parametrize("organs", [2, 40])
@torch.no_grad()
def test_the_last_layer_after_averaging_gives_what_it_gives_before(organs, preset, single_precision):
    torch.manual_seed(2)
    decoder = Decoder(preset.network, DecoderPlan(("2d", "3d")), organs).eval()
    pack = PackDecoder(decoder, range(1, organs + 1), torch.device("cpu"))
    features = GeneralEncoder(preset.network).freeze()(torch.rand(2, 1, *WINDOW))
    weights = torch.rand(WINDOW) + 0.1
    total_weight = torch.zeros(WINDOW)
    pack.begin(total_weight)
    pack.add_batch(features, weights, [WHOLE] * 2)
    total_weight += 2 * weights
    mean = pack.accumulator.finish(WINDOW[0], (slice(None), *WHOLE))
    expected = decoder(features).mean(dim=0).softmax(dim=0)
    torch.testing.assert_close(pack.predict(mean.values, None).probabilities, expected, atol=1e-5, rtol=1e-4)


def test_half_precision_of_the_sums_turns_ties_alone(encoder, packs, monkeypatch):
    voxels = make_scan(20, 32, 32)
    half = run(voxels, encoder, packs)[0]
    monkeypatch.setattr(window_accumulator, "STORED_AS", torch.float32)
    assert np.mean(half == run(voxels, encoder, packs)[0]) > 0.999  # of noise, by networks that know nothing


def test_windows_of_air_beside_the_body_are_not_run(encoder, packs):
    hu = np.random.default_rng(0).normal(-1000, 20, (16, 32, 48)).astype(np.int16)
    hu[:, :16, :16] += 1000
    config, done = SegmentConfig(overlap=0.0, windows_at_once=1), []
    found = SlidingWindow(padded(hu, (-1024.0, 1024.0)), encoder, packs, config=config).slabs(done.append)
    organs = np.concatenate([slab.merge([highest_probability])[0][0].organ.numpy() for slab in found])
    assert encoder.calls == 2
    assert sum(done) == 2 * 2 * 3
    assert organs[:, :16, :16].any()
    assert not organs[:, 16:].any()
    assert not organs[:, :, 16:].any()


def test_air_inside_the_body_is_run(encoder, packs):
    hu = np.zeros((8, 48, 48), np.int16)
    hu[:, 16:32, 16:32] = -1000
    config = SegmentConfig(overlap=0.0, windows_at_once=1)
    list(SlidingWindow(padded(hu, (-1024.0, 1024.0)), encoder, packs, config=config).slabs())
    assert encoder.calls == 9


def test_a_scan_of_background_alone_has_no_organ_and_score_0(encoder, packs):
    for pack in packs:
        pack.decoder.seg_layers[-1].bias.data[0] = 1000.0
    organs, scores = run(make_scan(20, 16, 16), encoder, packs)
    assert not organs.any()
    assert not scores.any()


# Skipping

CHEST, HEAD = BODY_PARTS.index("chest"), BODY_PARTS.index("head_neck")


class CountingPack(PackDecoder):
    windows = 0

    def add_batch(self, features, weights, boxes, axes=()):
        self.windows += len(boxes)
        super().add_batch(features, weights, boxes, axes)


def counting(packs, *coverages):
    return [
        CountingPack(
            pack.decoder, pack.organ_ids[1:].tolist(), torch.device("cpu"), PackProfile(str(i), "", coverage)
        )
        for i, (pack, coverage) in enumerate(zip(packs, coverages, strict=True))
    ]


def body(voxels, head_from):
    """Chest below, head above."""
    return ScanContext.of(np.where(np.arange(len(voxels)) < head_from, CHEST, HEAD))


def test_a_pack_is_not_run_where_it_covers_nothing_and_all_else_is_unchanged(encoder, packs):
    voxels, everywhere = make_scan(40, 16, 16), dict.fromkeys(BODY_PARTS, 1.0)
    broad, chest = counting(packs, everywhere, {"chest": 1.0})
    rules = [only(name, highest_probability) for name in ("0", "1")]
    limited = by_rules(voxels, encoder, [broad, chest], rules, context=body(voxels, 15))
    assert broad.windows == 9
    assert chest.windows == 4  # windows begin at 0, 4, 8, ...; those from 16 on lie in the head alone
    assert encoder.calls == 9
    free = by_rules(voxels, encoder, [broad, chest], rules)
    np.testing.assert_array_equal(limited[0], free[0])
    np.testing.assert_array_equal(limited[1][0][:15], free[1][0][:15])
    np.testing.assert_array_equal(limited[1][1][:15], free[1][1][:15])
    assert free[1][0][20:].any()
    assert not limited[1][0][20:].any()


def test_where_no_pack_covers_the_body_not_even_the_encoder_runs(encoder, packs):
    voxels = make_scan(40, 16, 16)
    both = counting(packs, {"chest": 1.0}, {"chest": 1.0})
    organs, _ = run(voxels, encoder, both, context=body(voxels, 15))
    assert encoder.calls == 4
    assert organs[:15].any()
    assert not organs[20:].any()


@pytest.mark.parametrize(
    "context",
    [None, ScanContext(), ScanContext.of(np.full(20, UNKNOWN_PART)), ScanContext.of(np.full(20, CHEST))],
)
def test_nothing_known_skips_nothing(context, encoder, packs):
    voxels = make_scan(20, 16, 16)
    counted = counting(packs, {}, {"chest": 1.0})
    run(voxels, encoder, counted, context=context)
    assert [pack.windows for pack in counted] == [4, 4]


def test_how_little_coverage_counts_as_none_can_be_set(encoder, packs):
    voxels = make_scan(20, 16, 16)
    head = ScanContext.of(np.full(20, HEAD))
    for below, windows in ((0.0, 4), (0.02, 0)):
        counted = counting(packs, {}, {"chest": 0.98, "head_neck": 0.01})
        run(voxels, encoder, counted, context=head, skip_below=below)
        assert counted[1].windows == windows


def test_the_context_of_a_small_scan_stays_with_its_voxels(encoder, packs):
    voxels = make_scan(3, 5, 7)
    seen = []

    def merge(predictions, context):
        seen.append(context)
        return highest_probability(predictions, context)

    anomaly = np.full(voxels.shape, 0.5, np.float32)
    by_rules(voxels, encoder, packs, [merge], context=ScanContext.of(np.full(3, HEAD), anomaly))
    assert seen[0].body_part.flatten().tolist() == [HEAD] * 3
    np.testing.assert_array_equal(seen[0].anomaly, anomaly)
