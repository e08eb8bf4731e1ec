"""Layers of a label map, and which organ is part of which."""

import numpy as np
import pytest

from continual_segment.evaluation.evaluate import score_case
from continual_segment.organs import find_organ, known_organs, owned_wholes, part_of, wholes_of
from continual_segment.segmentation.nested import layers
from continual_segment.volume import Grid, LabelMap

AORTA, ARCH, LIVER = (find_organ(name).id for name in ("aorta", "aorta_arch", "liver"))


def line(*voxels, names):
    return LabelMap(
        np.array([[voxels]], np.uint16),
        Grid((1, 1, len(voxels)), np.eye(4)),
        {find_organ(n).id: n for n in names},
    )


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("ascending_aorta", "aorta"),
        ("descending_aorta", "aorta"),
        ("aortic arch", "aorta"),
        ("brainstem", "brain"),
        ("optic_chiasm", "brain"),
        ("liver", ""),
        ("flux capacitor", ""),
    ],
)
def test_the_table_knows_parts_and_wholes(part, whole):
    assert part_of(part) == whole


def test_every_whole_is_in_the_table_and_nothing_is_part_of_itself():
    names = {organ.name for organ in known_organs()}
    for name in names:
        wholes = list(wholes_of(name))
        assert set(wholes) <= names
        assert name not in wholes


def test_only_wholes_that_some_pack_knows_count():
    lobe, side, lung = (find_organ(n) for n in ("lung_upper_lobe_left", "lung_left", "lung"))
    assert owned_wholes([lobe, side, lung]) == {lobe.id: side.id, side.id: lung.id}
    assert owned_wholes([lobe, lung]) == {lobe.id: lung.id}
    assert owned_wholes([lobe]) == {}


def test_a_map_with_parts_over_wholes_keeps_every_layer():
    flat = line(0, AORTA, ARCH, LIVER, names=("aorta", "aorta_arch", "liver"))
    whole, parts = layers(flat)
    assert whole.voxels.ravel().tolist() == [0, AORTA, AORTA, LIVER]
    assert parts.voxels.ravel().tolist() == [0, 0, ARCH, 0]
    assert set(whole.names.values()) == {"aorta", "liver"}
    assert set(parts.names.values()) == {"aorta_arch"}
    (single,) = layers(line(0, LIVER, names=("liver",)))
    assert single.voxels.ravel().tolist() == [0, LIVER]


def test_a_dataset_is_scored_on_its_own_layer():
    flat = line(0, AORTA, ARCH, LIVER, names=("aorta", "aorta_arch", "liver"))
    whole = LabelMap(np.array([[[0, 1, 1, 0]]], np.uint8), flat.grid, {1: "aorta"})
    parts = LabelMap(np.array([[[0, 0, 1, 0]]], np.uint8), flat.grid, {1: "aorta_arch"})
    both = LabelMap(np.array([[[0, 1, 2, 0]]], np.uint8), flat.grid, {1: "aorta", 2: "aortic arch"})
    for truth in (whole, parts, both):
        assert [row.dice for row in score_case("case", flat, truth)] == [1.0] * len(truth.names)
