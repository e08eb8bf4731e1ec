"""Only packs that can change a label are asked, about few pixels at a time and in few questions."""

from functools import partial

import numpy as np
import pytest
import torch

from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig
from continual_segment.segmentation import ScanContext, nearby_packs
from continual_segment.segmentation.merge import RULES
from continual_segment.segmentation.nearby_packs import NearbyPacks, groups
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.predictions import PackProfile
from continual_segment.segmentation.slab import Slab
from continual_segment.segmentation.window_accumulator import AccumulatedSlab

NETWORK = NetworkConfig((8, 8), ((3, 3, 3),) * 2, ((1, 1, 1), (2, 2, 2)), 1)
CPU = torch.device("cpu")
SHAPE = (4, 6, 5)


def make_packs(count):
    """Packs of two organs; the second is the first of the next pack."""
    return [
        PackDecoder(
            Decoder(NETWORK, DecoderPlan(("2d",)), 2), (n + 1, n + 2), CPU, PackProfile(str(n), str(n))
        )
        for n in range(count)
    ]


def output(background, share=None):
    """Logits of a pack: background by so much more probable than both organs, up to noise."""
    values = torch.randn(3, *SHAPE)
    values[0] += background
    return AccumulatedSlab(values, share)


def none_ran():
    return AccumulatedSlab(torch.zeros(()).expand(3, *SHAPE), torch.zeros(()).expand(SHAPE))


def asked_of(masks, packs):
    return np.unpackbits(masks, axis=1, bitorder="little")[:, :packs].astype(bool)


@pytest.mark.parametrize("packs", [5, 64, 70, 130])
def test_every_pixel_is_in_one_group_that_asks_all_packs_of_its_mask(packs):
    rng = np.random.default_rng(packs)
    kinds = rng.random((200, packs)) < 3 / packs
    bits = kinds[rng.zipf(1.3, 5000) % len(kinds)]
    found = groups(np.packbits(bits, axis=1, bitorder="little"))
    assert sorted(np.concatenate([pixels for pixels, _ in found])) == list(range(len(bits)))
    assert 1 < len(found) <= nearby_packs.MOST_GROUPS
    for pixels, numbers in found:
        assert set(np.flatnonzero(bits[pixels].any(axis=0))) == set(numbers)


@pytest.mark.parametrize("packs", [64, 130])
def test_groups_are_less_work_than_one_question_to_all_packs(packs):
    bits = np.random.default_rng(packs).random((200, packs)) < 3 / packs
    bits = np.repeat(bits, 300, axis=0)
    each = nearby_packs.PIXELS_OF_A_QUESTION
    found = groups(np.packbits(bits, axis=1, bitorder="little"))
    assert sum(len(numbers) * (len(pixels) + each) for pixels, numbers in found) < packs * len(bits) / 2


def test_a_pack_that_did_not_run_finds_no_organ():
    torch.manual_seed(0)
    packs = make_packs(4)
    outputs = [output(20.0), none_ran(), output(20.0), output(-20.0)]
    nearby, z = NearbyPacks(packs, Nesting({})), slice(0, 2)
    assert nearby.idle(outputs, z) == {1}
    asked = asked_of(nearby.masks(outputs, z, nearby.idle(outputs, z)), 4)
    # the last pack finds its organs everywhere; the third shares one of these
    np.testing.assert_array_equal(asked, np.tile([False, False, True, True], (len(asked), 1)))
    # a pack that ran on a part of a slice is not idle
    shares = torch.zeros(SHAPE)
    shares[0, 0, 0] = 0.5
    assert nearby.idle([output(0.0, shares)], slice(0, 1)) == frozenset()


@pytest.mark.parametrize("rule", ["consensus", "weighted"])
@pytest.mark.parametrize("masks_at_once", [1, 60, 10_000])
def test_merging_gives_the_same_decision_when_only_nearby_packs_are_asked(rule, masks_at_once, monkeypatch):
    monkeypatch.setattr("continual_segment.segmentation.slab.MASKS_AT_ONCE", masks_at_once)
    monkeypatch.setattr(nearby_packs, "PIXELS_OF_A_QUESTION", 3)
    torch.manual_seed(1)
    packs = make_packs(7)
    outputs = [output(2.5, torch.rand(SHAPE)), none_ran(), *(output(2.0) for _ in range(5))]
    context = ScanContext(torch.tensor([0, 1, 1, 2])[:, None, None], torch.rand(SHAPE), {"0": 0.3})
    slab = Slab(slice(0, 4), packs, outputs, context)
    asked = []

    def counted(predictions, context):
        asked.append(len(predictions) * predictions[0].score.numel())
        return merge_predictions(RULES[rule], predictions, context)

    ((expected, _),) = slab.merge([partial(merge_predictions, RULES[rule])])
    ((found, _),) = slab.merge([counted], nearby=NearbyPacks(packs, Nesting({})))
    assert (expected.organ > 0).any()
    assert (expected.organ == 0).any()
    torch.testing.assert_close(found.organ, expected.organ, rtol=0, atol=0)
    torch.testing.assert_close(found.pack, expected.pack, rtol=0, atol=0)
    torch.testing.assert_close(found.score, expected.score, rtol=1e-6, atol=1e-7)
    assert sum(asked) < len(packs) * expected.organ.numel()
