"""A decoder whose blocks may each be swapped for a projection."""

import pytest
import torch

from continual_segment.config import load_preset
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, PrunableDecoder, paper_count

ORGANS = 3


@pytest.fixture
def network():
    return load_preset("demo").network


@pytest.fixture
def features(network):
    torch.manual_seed(0)
    with torch.no_grad():
        return GeneralEncoder(network)(torch.randn(1, 1, 16, 16, 16))


@pytest.fixture
def decoder(network):
    torch.manual_seed(1)
    return Decoder(network, DecoderPlan(("3d", "p3d", "2d")), ORGANS)


def disturb(module):
    """Other weights, so that a mix-up shows."""
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)


@pytest.fixture
def paths(decoder):
    paths, mask = PrunableDecoder(decoder), (False, False, False)
    for number in range(3):
        paths.add_student(number)
        disturb(paths.add_copy(number, mask))
        mask = (*mask[:number], True, *mask[number + 1 :])
    return paths


def test_without_students_a_path_is_the_decoder_to_the_bit(paths, decoder, features):
    ((mask, logits),) = paths.answers(features, [(False, False, False)])
    assert torch.equal(logits, decoder(features))
    assert torch.equal(paths.decoder(mask)(features), decoder(features))


def test_every_path_answers_as_the_decoder_made_of_it(paths, features):
    answers = dict(paths.answers(features, paths.masks))
    assert len(answers) == 8
    for mask, logits in answers.items():
        alone = paths.decoder(mask)
        assert torch.equal(alone(features), logits)
        supervised = zip(
            alone.forward_supervised(features), paths.forward_supervised(features, mask), strict=True
        )
        assert all(torch.equal(one, other) for one, other in supervised)


def test_paths_differ(paths, features):
    sums = {round(logits.abs().sum().item(), 3) for _, logits in paths.answers(features, paths.masks)}
    assert len(sums) == 8


def test_only_the_paths_asked_for_are_run(paths, features):
    asked = {(True, False, True), (True, True, False)}
    assert {mask for mask, _ in paths.answers(features, asked)} == asked


def test_what_paths_have_in_common_is_computed_once(paths, decoder, features):
    calls = []
    for number, block in enumerate(decoder.stages):
        block.register_forward_hook(lambda *_, number=number: calls.append(number))
    list(paths.answers(features, paths.masks))
    # the first block once; behind a student the copy used to it takes the place of the decoder
    assert calls.count(0) == 1
    assert calls.count(1) == 1
    assert calls.count(2) == 1


def test_a_block_comes_from_the_copy_that_knows_the_student_next_before_it(paths):
    assert paths.used_to((True, False, False), 2) is paths.decoders["0"]
    assert paths.used_to((True, True, False), 2) is paths.decoders["1"]
    assert paths.used_to((True, True, False), 1) is paths.decoders["0"]
    assert paths.used_to((False, False, True), 2) is paths.decoders["-1"]
    assert paths.used_to((False, False, True), 3) is paths.decoders["2"]


def test_without_a_copy_the_decoder_itself_stands_behind_a_student(decoder):
    paths = PrunableDecoder(decoder)
    paths.add_student(0)
    assert paths.used_to((True, False, False), 2) is decoder


def test_blocks_that_are_projections_are_not_swapped(network):
    decoder = Decoder(network, DecoderPlan(("projection", "nnunet", "projection")), ORGANS)
    paths = PrunableDecoder(decoder)
    assert paths.replaceable == (1,)
    assert paths.masks == [(False, False, False), (False, True, False)]


def test_sizes_of_paths_are_the_papers():
    network = load_preset("paper").network
    with torch.device("meta"):  # too large to make
        paths = PrunableDecoder(Decoder(network, DecoderPlan(("p3d", "p3d", "2d", "p3d", "2d")), 103))
    sizes = {mask: paper_count(paths.plan_of(mask), network) for mask in paths.masks}
    assert len(sizes) == 32
    off, on = False, True
    assert sizes[off, off, off, off, off] == 6_663_168
    assert sizes[off, off, off, on, off] == 6_528_000  # tau 1
    assert sizes[off, on, off, off, off] == 4_500_480  # tau 3
    assert sizes[on, off, off, off, off] == 3_283_968  # tau 5
    assert sizes[on, on, on, on, on] == 568_320
