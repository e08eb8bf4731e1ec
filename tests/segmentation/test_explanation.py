"""Explanations of a label map."""

import numpy as np
import pytest
import torch

from continual_segment.segmentation.explanation import (
    ExplanationBuilder,
    binary_entropy_bits,
    disagreement,
    measure_quality,
    organs_at_faces,
    packs_on_grid,
)
from continual_segment.segmentation.nested import Nesting
from continual_segment.segmentation.padded_scan import WHOLE
from continual_segment.segmentation.predictions import Decision, PackPrediction, PackProfile
from continual_segment.segmentation.sampling import Sampling
from continual_segment.volume import Grid, LabelMap


def predicted(organ_ids, *channels):
    ids = torch.tensor([0, *organ_ids], dtype=torch.int32)
    return PackPrediction(PackProfile(), ids, torch.tensor(channels)[:, None, None])


def contested(organ, winner, *predictions, nesting=None):
    decision = Decision(
        torch.tensor([[organ]], dtype=torch.int32), torch.ones(1, 1, len(organ)), torch.tensor([[winner]])
    )
    return disagreement(predictions, decision, nesting or Nesting({})).flatten().tolist()


def test_packs_disagree_where_one_names_another_organ_or_misses_one_it_knows():
    knows = predicted([5], [0.1, 0.9, 0.9, 0.1], [0.9, 0.1, 0.1, 0.9])  # sees 5, nothing, nothing, 5
    other = predicted([6], [0.9, 0.9, 0.9, 0.1], [0.1, 0.1, 0.1, 0.9])  # sees 6 in the last
    third = predicted([5, 6], [0.1, 0.1, 1.0, 0.1], [0.9, 0.9, 0.0, 0.9], [0.0, 0.0, 0.0, 0.0])
    assert contested([5, 5, 0, 5], [0, 2, -1, 0], knows, other, third) == [False, True, False, True]


def test_a_whole_and_its_part_do_not_disagree():
    whole, part = predicted([7], [0.1], [0.9]), predicted([8], [0.1], [0.9])
    assert contested([8], [1], whole, part) == [True]
    assert contested([8], [1], whole, part, nesting=Nesting({8: 7})) == [False]
    assert contested([7], [0], whole, part, nesting=Nesting({8: 7})) == [False]


def merged(organ, pack, score, disputed):
    """One line of voxels, by two packs."""
    found = ExplanationBuilder(organ.shape[1:], ["a", "b"])
    decision = Decision(torch.tensor(organ), torch.tensor([[score]]), torch.tensor([[pack]]))
    found.add(WHOLE, organ, decision, torch.tensor([[disputed]]))
    return found


def test_quality_counts_voxels_of_the_organ_alone():
    organ = np.array([[[5, 5, 5, 6, 0]]], np.uint16)
    found = merged(organ, [0, 0, 1, 1, -1], [1.0, 0.5, 0.75, 1.0, 0.0], [False, True, False, True, False])
    labels = LabelMap(organ, Grid((1, 1, 5), np.diag([10.0, 10.0, 10.0, 1.0])), {5: "liver", 6: "spleen"})
    liver, spleen = measure_quality(found, labels)
    assert (liver.organ, spleen.organ) == ("liver", "spleen")
    assert liver.volume_ml == 3.0
    assert liver.mean_score == 0.75
    assert liver.mean_entropy_bits == pytest.approx((0 + 1 + 0.8113) / 3, abs=1e-3)
    assert liver.contested_share == pytest.approx(1 / 3, abs=1e-4)
    assert liver.packs == {"a": 0.6667, "b": 0.3333}
    assert spleen.contested_share == 1.0
    assert "left" in liver.touches_edge
    assert "left" not in spleen.touches_edge


def test_of_many_packs_each_keeps_its_number():
    organ = np.array([[[5, 5, 5, 0]]], np.uint16)
    found = ExplanationBuilder(organ.shape[1:], [f"pack {number}" for number in range(1, 301)])
    winners = torch.tensor([[[254, 255, 299, -1]]], dtype=torch.int16)
    found.add(WHOLE, organ, Decision(torch.tensor(organ), torch.ones(1, 1, 4), winners), torch.zeros(1, 1, 4))
    labels = LabelMap(organ, Grid((1, 1, 4), np.eye(4)), {5: "liver"})
    packs = packs_on_grid(found, labels, lambda voxels: voxels)
    assert packs.voxels.tolist() == [[[255, 256, 300, 0]]]
    assert packs.names[300] == "pack 300"


def test_an_organ_that_reaches_the_last_slice_touches_the_edge():
    voxels = np.zeros((3, 4, 5), np.uint16)
    voxels[1, 2, 2] = 7
    assert [face for face, organs in organs_at_faces(voxels).items() if 7 in organs] == []
    voxels[2, 2, 2] = voxels[1, 0, 2] = 7
    assert [face for face, organs in organs_at_faces(voxels).items() if 7 in organs] == ["top", "back"]


def test_edges_are_those_of_the_voxels_that_were_scanned():
    scanned = np.zeros((3, 6, 5), bool)
    for z in range(3):
        scanned[z, z : z + 4] = True
    voxels = np.zeros(scanned.shape, np.uint16)
    voxels[1, 2, 2] = 7
    voxels[1, 1, 1] = 8
    voxels[1, 4, 1] = 9
    voxels[2, 3, 4] = 10
    faces = organs_at_faces(voxels, scanned)
    touched = {organ: [face for face, organs in faces.items() if organ in organs] for organ in (7, 8, 9, 10)}
    assert touched == {7: [], 8: ["back"], 9: ["front"], 10: ["top", "right"]}


def test_voxels_that_were_not_scanned_count_for_no_organ():
    organ = np.array([[[5, 5, 5, 0]]], np.uint16)
    found = ExplanationBuilder((1, 4), ["a", "b"], np.array([[[True, False, True, True]]]))
    decision = Decision(
        torch.tensor(organ), torch.tensor([[[1.0, 0.2, 0.5, 0.0]]]), torch.tensor([[[0, 0, 1, -1]]])
    )
    found.add(WHOLE, organ, decision, torch.tensor([[[False, True, False, False]]]))
    assert (found.score[5], found.contested[5], found.won[:, 5].tolist()) == (1.5, 0, [0, 1, 1])
    assert found.organ[:].tolist() == [[[5, 0, 5, 0]]]


def test_a_toss_up_has_one_bit_and_certainty_none():
    assert binary_entropy_bits(np.array([0.5, 0.0, 1.0])) == pytest.approx([1, 0, 0], abs=1e-4)


def test_every_labelled_voxel_has_a_pack_also_on_a_finer_grid():
    found = merged(np.array([[[5, 6]]]), [0, 1], [1.0, 1.0], [False, False])
    fine = LabelMap(np.array([[[5, 5, 5, 6, 0]]], np.uint16), Grid((1, 1, 5), np.eye(4)), {5: "a", 6: "b"})
    sampling = Sampling((1, 1, 2), (1, 1, 5), (1, 1, 5))
    assert packs_on_grid(found, fine, sampling.nearest).voxels.ravel().tolist() == [1, 1, 1, 2, 0]


def test_sums_of_several_slabs_add_up_and_nothing_is_beside_the_box():
    parts = [merged(np.array([[[5, 0]]]), [0, -1], [score, 0.0], [False, False]) for score in (1.0, 0.5)]
    both = ExplanationBuilder((3, 4), ["a", "b"])
    for score in (1.0, 0.5):
        decision = Decision(
            torch.tensor([[[5, 0]]]), torch.tensor([[[score, 0.0]]]), torch.tensor([[[0, -1]]])
        )
        both.add((slice(1, 2), slice(2, 4)), np.array([[[5, 0]]]), decision, torch.zeros(1, 1, 2, dtype=bool))
    assert both.score[5] == sum(part.score[5] for part in parts) == 1.5
    assert both.organ.shape == (2, 3, 4)
    assert np.argwhere(both.organ[:]).tolist() == [[0, 1, 2], [1, 1, 2]]
