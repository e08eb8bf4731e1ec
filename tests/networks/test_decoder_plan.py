"""Shapes of decoders as plain data, and what they weigh."""

from typing import get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from continual_segment.config import load_preset
from continual_segment.networks import (
    Decoder,
    DecoderPlan,
    GeneralEncoder,
    multiply_adds,
    paper_count,
    true_count,
)
from continual_segment.networks.block_form import BlockForm, KernelName

# The paper's pruned decoders, deepest block first, and the size it gives each.
PRUNED = {
    ("p3d", "p3d", "2d", "projection", "2d"): 6_528_000,
    ("projection", "p3d", "p3d", "2d", "2d"): 3_394_560,
    ("projection", "p3d", "3d", "p3d", "p3d"): 4_177_920,
    ("projection",) * 5: 568_320,
}


@pytest.fixture(scope="module")
def paper():
    return load_preset("paper").network


def test_nnunets_decoder_has_the_papers_count(paper):
    assert paper_count(DecoderPlan.nnunet(paper), paper) == 15_068_160


@pytest.mark.parametrize(("kernels", "count"), PRUNED.items())
def test_pruned_decoders_have_the_papers_counts(kernels, count, paper):
    assert paper_count(DecoderPlan(kernels), paper) == count


def test_the_four_pruned_decoders_together_have_the_papers_count(paper):
    assert sum(paper_count(DecoderPlan(kernels), paper) for kernels in PRUNED) == 14_668_800


def test_the_true_count_takes_every_number_of_nnunets_decoder(paper):
    decoder = Decoder(paper, DecoderPlan.nnunet(paper), organs=103)
    assert true_count(decoder) == 16_935_144
    assert true_count(decoder) == sum(tensor.numel() for tensor in decoder.state_dict().values())


def test_the_papers_count_is_the_block_convolutions_weights_where_no_p3d_is_involved(paper):
    plan = DecoderPlan(("projection", "3d", "2d", "nnunet", "2d"))
    weights = [
        parameter.numel()
        for name, parameter in Decoder(paper, plan, organs=1).named_parameters()
        if name.startswith("stages.") and name.endswith("conv.weight")
    ]
    assert sum(weights) == paper_count(plan, paper)


def test_p3d_is_in_plane_then_through_plane(preset):
    (first, second), other = DecoderPlan(("p3d", "2d")).block_kernels(preset.network)
    assert first == (1, 3, 3)  # in the plane of a slice
    assert second == (3, 1, 1)  # from slice to slice
    assert other == ((1, 3, 3),)


def test_nnunets_blocks_take_the_kernel_of_the_stage_they_meet(preset):
    # deepest first: the middle stage, then the finest
    assert DecoderPlan.nnunet(preset.network).block_kernels(preset.network) == [((3, 3, 3),), ((1, 3, 3),)]


def test_an_unknown_kernel_is_refused_on_construction():
    with pytest.raises(ValueError, match=r"projection, 2d, p3d, 3d, nnunet.*4d"):
        DecoderPlan(("2d", "4d"))


@pytest.mark.parametrize(
    "name", ["2d@0", "2d@-1", "2d@", "2d@08", "2d@5000", "2d@1.5", "4d@8", "@8", "2d@8@8", 3]
)
def test_a_form_from_a_stranger_is_refused_unless_kernel_and_width_are_known(name):
    with pytest.raises(ValueError, match="width from 1 to 4096"):
        DecoderPlan(("2d", name))


@pytest.mark.parametrize("name", ["projection", "nnunet", "2d@8", "p3d@4096", "nnunet@1"])
def test_a_form_is_written_as_it_is_read(name):
    assert BlockForm.of(name).name == name


def test_only_plans_with_widths_need_the_newer_format():
    assert DecoderPlan(("2d@8", "nnunet")).has_widths
    assert not DecoderPlan(("2d", "nnunet")).has_widths


def test_a_plan_with_too_few_blocks_makes_no_decoder(preset):
    with pytest.raises(ValueError, match=r"zip\(\)"):
        Decoder(preset.network, DecoderPlan(("2d",)), organs=2)


def counted_by_torch(plan, network, window, organs):
    with torch.device("meta"):  # shapes alone
        features = GeneralEncoder(network)(torch.empty(1, 1, *window))
        decoder = Decoder(network, plan, organs)
        with FlopCounterMode(display=False) as counter:
            decoder(features)
    return counter.get_total_flops()


@pytest.mark.parametrize("kernel", [*get_args(KernelName), "nnunet@3", "2d@2", "p3d@3", "projection@1"])
def test_multiply_adds_are_half_of_the_operations_torch_counts(kernel, preset):
    plan, window = DecoderPlan((kernel, "2d")), (8, 16, 24)
    assert 2 * multiply_adds(plan, preset.network, window, 5) == counted_by_torch(
        plan, preset.network, window, 5
    )


NARROW = ("nnunet@40", "p3d@64", "nnunet@32", "2d@16", "nnunet@8")


def test_the_count_of_narrow_blocks_is_that_of_their_convolutions_weights(paper):
    plan = DecoderPlan(NARROW)
    weights = [
        parameter.numel()
        for name, parameter in Decoder(paper, plan, organs=1).named_parameters()
        if name.startswith("stages.") and parameter.dim() == 5
    ]
    assert sum(weights) == paper_count(plan, paper) < paper_count(DecoderPlan.nnunet(paper), paper) / 5


@pytest.mark.parametrize("kernels", [*PRUNED, ("nnunet",) * 5, NARROW])
def test_multiply_adds_at_the_papers_size(kernels, paper):
    plan, window = DecoderPlan(kernels), (64, 128, 128)
    assert 2 * multiply_adds(plan, paper, window, 31) == counted_by_torch(plan, paper, window, 31)


def test_the_papers_pruned_decoders_are_small_but_not_quick(paper):
    window = (64, 128, 128)
    nnunet = DecoderPlan.nnunet(paper)
    parameters = sum(paper_count(DecoderPlan(kernels), paper) for kernels in PRUNED)
    costs = sum(multiply_adds(DecoderPlan(kernels), paper, window, 1) for kernels in PRUNED)
    assert parameters < paper_count(nnunet, paper)
    assert costs > 1.5 * multiply_adds(nnunet, paper, window, 1)
