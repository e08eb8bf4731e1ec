"""Clean-up: what cannot be is removed, and nothing else is touched."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from continual_segment.model.pieces import OrganPieces
from continual_segment.organs import find_organ, owned_wholes
from continual_segment.segmentation import SegmentConfig, components
from continual_segment.segmentation.clean_up import (
    IslandRemover,
    known_pieces,
    remove_islands,
)
from continual_segment.segmentation.components import Runs
from continual_segment.segmentation.nested import Nesting
from continual_segment.volume import Grid, LabelMap

ORGANS = [find_organ(name) for name in ("liver", "mandible", "aorta", "aortic_arch", "descending_aorta")]
LIVER, MANDIBLE, AORTA, ARCH, DESCENDING = (organ.id for organ in ORGANS)
NAMES = {organ.id: organ.name for organ in ORGANS}
NESTING = Nesting(owned_wholes(ORGANS))
ONE_PIECE = OrganPieces(40, (39, 1), (1.0, 9000.0), (0.8, 0.99), 0.5)
TWO_PIECES = OrganPieces(40, (10, 30), (10.0, 100.0), (0.5, 0.6), 8.0)
CENTIMETRES = np.diag([10.0, 10.0, 10.0, 1.0])
KNOWN = dict.fromkeys(NAMES, ONE_PIECE) | {MANDIBLE: TWO_PIECES}


def labels_of(*blocks, shape=(20, 12, 12), affine=CENTIMETRES):
    """A map with voxels of 1 ml and blocks (organ, place) in it."""
    voxels = np.zeros(shape, np.uint16)
    for organ, place in blocks:
        voxels[place] = organ
    return LabelMap(voxels, Grid(shape, affine), dict(NAMES))


def cleaned(labels, known=KNOWN, nesting=NESTING, config=None):
    """A cleaned copy, and what was removed."""
    copy = LabelMap(labels.voxels.copy(), labels.grid, labels.names)
    return copy, remove_islands(copy, known, nesting, config)


def counts(labels):
    return {organ: int((labels.voxels == organ).sum()) for organ in NAMES if (labels.voxels == organ).any()}


def test_an_organ_in_one_piece_keeps_its_largest_component():
    places = np.s_[0:6, 0:6, 0:6], np.s_[10:12, 8:10, 8:10], np.s_[15, 0, 0]
    labels = labels_of(*((LIVER, place) for place in places))
    found, removed = cleaned(labels)
    assert counts(found) == {LIVER: 216}
    assert [(each.organ, each.ml, each.pieces) for each in removed.islands] == [("liver", 9.0, 2)]
    assert removed.changed == {LIVER}


def test_corners_connect():
    labels = labels_of((LIVER, np.s_[0:3, 0:3, 0:3]), (LIVER, np.s_[3, 3, 3]))
    assert cleaned(labels)[1].islands == ()


def test_a_prediction_with_a_gap_keeps_both_ends():
    """A fifth of the largest component is too large for an island."""
    labels = labels_of((LIVER, np.s_[0:10, 0, 0]), (LIVER, np.s_[12:14, 0, 0]), (LIVER, np.s_[18, 0, 0]))
    found, removed = cleaned(labels)
    assert counts(found) == {LIVER: 12}
    assert removed.islands[0].pieces == 1


SHORT = replace(ONE_PIECE, extent_mm=(120.0, 40.0, None))


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        (np.s_[12:15, 0, 0], True),  # together 150 mm: 1.25 times the 120 of training
        (np.s_[13:16, 0, 0], False),
        (np.s_[0:3, 4, 0], True),  # 50 mm, where training has 40
        (np.s_[0:3, 5, 0], False),
        (np.s_[0:3, 0, 11], True),  # training scans end with the organ: no limit along x
    ],
)
def test_a_piece_must_be_within_reach_however_large_it_is(second, kept):
    labels = labels_of((LIVER, np.s_[0:10, 0, 0]), (LIVER, second))
    found, _ = cleaned(labels, {LIVER: SHORT})
    assert counts(found)[LIVER] == (13 if kept else 10)
    assert counts(cleaned(labels)[0]) == {LIVER: 13}  # of an older pack, without extents


@pytest.mark.parametrize("side", [0.0, -1.0, float("inf"), float("nan")])
def test_an_extent_that_no_organ_has_is_refused(side):
    with pytest.raises(ValueError, match="extent_mm"):
        replace(ONE_PIECE, extent_mm=(120.0, side, None))


def test_an_organ_longer_than_in_training_keeps_pieces_that_do_not_make_it_longer():
    longer = labels_of((LIVER, np.s_[0:17, 0, 0]), (LIVER, np.s_[4:10, 2, 0]))
    assert cleaned(longer, {LIVER: SHORT})[1].islands == ()
    further = labels_of((LIVER, np.s_[0:15, 0, 0]), (LIVER, np.s_[16:20, 0, 0]))
    assert counts(cleaned(further, {LIVER: SHORT})[0]) == {LIVER: 15}


def test_an_organ_in_several_pieces_keeps_as_many_of_that_size():
    """Its smallest piece in training has 8 ml: half of that is kept, however small beside the largest."""
    pieces = np.s_[0:8, 0:5, 0:5], *(np.s_[10:12, 0:2, x : x + 2] for x in (0, 4, 8))
    labels = labels_of(*((MANDIBLE, place) for place in (*pieces, np.s_[16, 0, 0:3])))
    found, removed = cleaned(labels)
    assert counts(found) == {MANDIBLE: 200 + 3 * 8}
    assert removed.islands[0].ml == 3.0


def test_parts_count_with_their_whole_and_are_removed_with_it():
    """Drawn over the aorta, its parts divide it; together they are one piece."""
    tube = [(AORTA, np.s_[0:16, 0, 0]), (DESCENDING, np.s_[2:9, 0, 0]), (ARCH, np.s_[12:14, 0, 0])]
    labels = labels_of(*tube, (AORTA, np.s_[4, 8, 8]), (DESCENDING, np.s_[5, 8, 8]))
    found, removed = cleaned(labels)
    assert np.array_equal(found.voxels, labels_of(*tube).voxels)
    assert [(each.organ, each.ml, each.pieces) for each in removed.islands] == [("aorta", 2.0, 1)]
    assert removed.changed == {AORTA, DESCENDING}


def test_an_island_of_a_part_becomes_its_whole():
    tube = [(AORTA, np.s_[0:16, 0, 0]), (DESCENDING, np.s_[2:9, 0, 0])]
    labels = labels_of(*tube, (DESCENDING, np.s_[13, 0, 0]))
    found, removed = cleaned(labels)
    assert np.array_equal(found.voxels, labels_of(*tube).voxels)
    assert removed.changed == {AORTA, DESCENDING}


def test_an_island_that_has_all_of_a_part_stays():
    labels = labels_of((AORTA, np.s_[0:16, 0, 0]), (ARCH, np.s_[5, 8, 8]))
    found, removed = cleaned(labels)
    assert np.array_equal(found.voxels, labels.voxels)
    assert removed.islands == ()


def test_slices_of_a_tilted_gantry_connect_where_the_patient_does():
    """A vessel of one pixel, upright in the patient: three pixels further on every slice of such a grid."""
    affine = CENTIMETRES.copy()
    affine[1, 2] = -30.0
    vessel = [(AORTA, np.s_[z, 3 * z, 0]) for z in range(12)]
    labels = labels_of(*vessel, (AORTA, np.s_[0, 30, 0]), shape=(12, 40, 3), affine=affine)
    found, removed = cleaned(labels)
    assert counts(found) == {AORTA: 12}
    assert removed.islands[0].pieces == 1
    upright = labels_of(*vessel, shape=(12, 40, 3))
    assert len(Runs.of(upright).components([AORTA]).sizes) == 1 + 12  # by index they are apart


def test_boxes_are_as_long_as_in_the_patient_on_a_tilted_gantry_too():
    affine = CENTIMETRES.copy()
    affine[1, 2] = -30.0
    labels = labels_of(*((AORTA, np.s_[z, 3 * z, 0]) for z in range(12)), shape=(12, 40, 3), affine=affine)
    extents = Runs.of(labels).components([AORTA]).boxes.extents_mm
    np.testing.assert_allclose(extents[1], [120, 10, 10])


@pytest.mark.parametrize("known", [{}, {MANDIBLE: TWO_PIECES}])
def test_organs_whose_pieces_are_not_known_keep_every_voxel(known):
    labels = labels_of((LIVER, np.s_[0:6, 0:6, 0:6]), (LIVER, np.s_[10, 8, 8]))
    assert np.array_equal(cleaned(labels, known)[0].voxels, labels.voxels)


def test_a_map_in_another_order_of_memory_is_cleaned_up_in_place():
    labels = labels_of((LIVER, np.s_[0:6, 0:6, 0:6]), (LIVER, np.s_[10, 8:10, 8]))
    turned = LabelMap(np.asfortranarray(labels.voxels)[:, ::-1], labels.grid, labels.names)
    assert remove_islands(turned, KNOWN, NESTING).islands[0].pieces == 1
    assert counts(turned) == {LIVER: 216}


@pytest.mark.parametrize("voxels", [1, 300, 10**6])
def test_components_are_those_of_the_whole_map_however_it_is_read(voxels, monkeypatch):
    monkeypatch.setattr(components, "VOXELS_AT_ONCE", voxels)
    mask = np.random.default_rng(0).random((20, 12, 12)) < 0.09
    labels = labels_of((LIVER, mask))
    runs = Runs.of(labels)
    found = runs.components([LIVER])
    expected, count = ndimage.label(mask, np.ones((3, 3, 3)))
    assert count > 20
    assert found.sizes.tolist() == [0, *np.bincount(expected.ravel())[1:]]
    for number, box in enumerate(ndimage.find_objects(expected), start=1):
        assert found.boxes.first[number].tolist() == [part.start for part in box]
        assert found.boxes.end[number].tolist() == [part.stop for part in box]
        numbers = np.arange(len(found.sizes)) == number
        runs.fill(found.runs_of(numbers), MANDIBLE)
        assert np.array_equal(labels.voxels == MANDIBLE, expected == number)
        runs.fill(found.runs_of(numbers), LIVER)


@given(
    voxels=st.integers(0, 2**32 - 1), share=st.floats(0.02, 0.6), shape=st.tuples(*[st.integers(1, 9)] * 3)
)
@settings(max_examples=100, deadline=None)
def test_components_of_any_union_are_those_of_its_mask(voxels, share, shape):
    rng = np.random.default_rng(voxels)
    organs = np.where(rng.random(shape) < share, rng.choice([LIVER, AORTA, ARCH], shape), 0)
    labels = labels_of((0, np.s_[:]), shape=shape)
    labels.voxels[:] = organs
    runs = Runs.of(labels)
    for family in ([LIVER], [AORTA, ARCH], [LIVER, AORTA, ARCH]):
        mask = np.isin(organs, family)
        if mask.any():
            expected = ndimage.label(mask, np.ones((3, 3, 3)))[0]
            assert runs.components(family).sizes.tolist() == [0, *np.bincount(expected.ravel())[1:]]
            ends = [np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
            cut = [at[0] == 0 or at[-1] == size - 1 for at, size in zip(ends, shape, strict=True)]
            assert runs.cut(family).tolist() == cut


def test_memory_does_not_grow_with_the_slices_between_islands(monkeypatch):
    monkeypatch.setattr(components, "VOXELS_AT_ONCE", 2**16)

    def peak(slices):
        labels = labels_of((LIVER, np.s_[:3]), (LIVER, np.s_[-1, :5]), shape=(slices, 80, 80))
        tracemalloc.start()
        assert remove_islands(labels, KNOWN, NESTING).islands
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(320) < 1.5 * peak(40)


# ---- laws, on maps of blocks at random


def block():
    edge = st.tuples(st.integers(0, 9), st.integers(1, 5)).map(lambda part: slice(part[0], sum(part)))
    return st.tuples(st.sampled_from(list(NAMES)), st.tuples(edge, edge, edge))


MAPS = st.lists(block(), min_size=1, max_size=14).map(lambda blocks: labels_of(*blocks, shape=(14, 14, 14)))


def with_parts(voxels, organ):
    return np.isin(voxels, NESTING.families(NAMES)[organ])


@given(labels=MAPS)
@settings(max_examples=150, deadline=None)
def test_laws(labels):
    found, removed = cleaned(labels)
    again, nothing = cleaned(found)
    assert np.array_equal(again.voxels, found.voxels)  # idempotent
    assert nothing.islands == ()
    for organ in NAMES:
        before, after = with_parts(labels.voxels, organ), with_parts(found.voxels, organ)
        assert not (after & ~before).any()  # adds no voxel
        assert after.any() == before.any()  # empties no organ
    differs = found.voxels != labels.voxels
    assert sum(each.ml for each in removed.islands) == differs.sum()
    assert set(np.unique([labels.voxels[differs], found.voxels[differs]])) - {0} == removed.changed
    wholes = {part: NESTING.wholes.get(part, 0) for part in NAMES}
    parents = np.array([wholes[int(value)] for value in labels.voxels[differs]])
    assert ((found.voxels[differs] == 0) | (found.voxels[differs] == parents)).all()  # parts stay in wholes


@given(labels=MAPS, order=st.permutations(list(NAMES)))
@settings(max_examples=60, deadline=None)
def test_the_order_of_organs_has_no_effect(labels, order):
    turned = LabelMap(labels.voxels, labels.grid, {organ: NAMES[organ] for organ in order})
    (one, first), (other, second) = cleaned(labels), cleaned(turned, {organ: KNOWN[organ] for organ in order})
    assert np.array_equal(one.voxels, other.voxels)
    assert first == second


# ---- what packs know together


def test_an_organ_is_known_only_if_every_pack_that_has_it_measured_it():
    liver, mandible = ORGANS[:2]
    old = ([liver], {})
    new = ([liver, mandible], {"liver": ONE_PIECE, "mandible": TWO_PIECES})
    assert known_pieces([old, new]) == {MANDIBLE: TWO_PIECES}
    assert known_pieces([new, old]) == {MANDIBLE: TWO_PIECES}
    other = ([liver], {"liver": TWO_PIECES})
    assert known_pieces([new, other]) == known_pieces([other, new])
    assert known_pieces([new, other])[LIVER].pieces == (49, 31)
    assert known_pieces([new, other])[LIVER].smallest_piece_ml == 0.5


def test_a_whole_that_competes_with_its_parts_is_not_judged():
    packs = [(ORGANS, {organ.name: ONE_PIECE for organ in ORGANS})]
    apart = IslandRemover.of(packs, ORGANS[:3], SegmentConfig(nested=False))
    assert set(apart.known) == {LIVER, MANDIBLE, ARCH, DESCENDING}
    assert set(IslandRemover.of(packs, ORGANS, SegmentConfig()).known) == set(NAMES)
    assert not IslandRemover.of(packs, ORGANS, SegmentConfig(keep_islands=True)).known
