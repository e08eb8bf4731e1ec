"""Organs outside the table whose names hash to one id: each has an id of its own in every model."""

import itertools
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.clinic.statistics import organ_statistics
from continual_segment.errors import ModelError
from continual_segment.files.terms import terms_of
from continual_segment.model import Model, OrganPack, verify
from continual_segment.networks import Decoder, DecoderPlan
from continual_segment.organs import (
    LAST_HASHED_ID,
    MOST_IN_A_MODEL,
    Organ,
    find_organ,
    known_organs,
    with_distinct_ids,
)
from continual_segment.segmentation import MultiSegmenter, SegmentConfig, Segmenter
from continual_segment.volume import Grid, Volume

STORED = Path(__file__).with_name("format_1") / "model"
QUIET = SegmentConfig(progress=False)


def colliding_names():
    """Groups of names with one hashed id, the largest first."""
    groups = defaultdict(list)
    for number in range(4000):
        groups[find_organ(f"structure_{number}").id].append(f"structure_{number}")
    return sorted((names for names in groups.values() if len(names) > 1), key=len, reverse=True)


GROUPS = colliding_names()
TRIPLE, PAIR = GROUPS[0], GROUPS[-1]
COLLIDING = {*TRIPLE[:2], *PAIR}
organ_sets = st.lists(
    st.one_of(
        st.sampled_from([name for group in GROUPS for name in group]),
        st.sampled_from(TRIPLE),
        st.sampled_from([organ.name for organ in known_organs()]),
        st.text("abcdef", min_size=1, max_size=8),
    ),
    max_size=40,
    unique_by=lambda name: find_organ(name).name,
).map(lambda names: [find_organ(name) for name in names])


def ids_of(organs):
    return {name: organ.id for name, organ in with_distinct_ids(organs).items()}


def test_names_that_collide_were_found():
    assert len(TRIPLE) >= 3
    assert len(PAIR) == 2


@settings(max_examples=150, deadline=None)
@given(organ_sets, st.randoms())
def test_the_order_of_organs_decides_no_id(organs, random):
    shuffled = [*organs, *organs]  # two packs may have the same organ
    random.shuffle(shuffled)
    assert ids_of(shuffled) == ids_of(organs)


@settings(max_examples=150, deadline=None)
@given(organ_sets)
def test_no_id_is_taken_twice_and_most_are_those_of_the_name(organs):
    found = ids_of(organs)
    assert len(set(found.values())) == len(organs) == len(found)
    assert all(1 <= id_ <= LAST_HASHED_ID for id_ in found.values())
    wanted = [organ.id for organ in organs]
    for organ in organs:
        if wanted.count(organ.id) == 1 or organ in known_organs():
            assert found[organ.name] == organ.id
    assert set(wanted) <= set(found.values())  # one of those that collide keeps the id


def test_an_organ_of_the_table_keeps_its_id_beside_one_that_claims_it():
    liver = find_organ("liver")
    claims = Organ("a_stranger", liver.id)
    for organs in itertools.permutations([liver, claims]):
        found = ids_of(organs)
        assert found["liver"] == liver.id != found["a_stranger"]


def test_more_organs_than_a_model_can_have_are_refused():
    organs = [Organ(f"organ{number}", 1000 + number) for number in range(MOST_IN_A_MODEL + 1)]
    with pytest.raises(ModelError, match=str(MOST_IN_A_MODEL)):
        with_distinct_ids(organs)


# Models


@pytest.fixture
def base(tmp_path):
    return Model.open(shutil.copytree(STORED, tmp_path / "base" / "model"))


@pytest.fixture
def packs(base):
    """Two packs whose organs collide, and have one organ in common."""
    organs = [PAIR[1], TRIPLE[0], "my_gland"], ["liver", "my_gland", TRIPLE[1], PAIR[0]]
    return [made_up_pack(base, "a", organs[0], seed=1), made_up_pack(base, "b", organs[1], seed=2)]


@pytest.fixture
def scan():
    coarse = torch.from_numpy(np.random.default_rng(0).uniform(-1000, 600, (1, 1, 4, 5, 5)))
    voxels = torch.nn.functional.interpolate(coarse, size=(16, 20, 18), mode="trilinear")[0, 0].numpy()
    return Volume(voxels.round().astype(np.int16), Grid(voxels.shape, np.diag([16.0, 16.0, 16.0, 1.0])))


def made_up_pack(model, name, organs, seed):
    torch.manual_seed(seed)
    encoder, plan = model.load_encoder(), DecoderPlan(("p3d",) * (len(model.network.features) - 1))
    decoder = Decoder(model.network, plan, len(organs))
    found = tuple(find_organ(organ) for organ in organs)
    return OrganPack.of(name, found, encoder, decoder, model.encoder_fingerprint)


def installed(base, folder, packs):
    model = Model.open(shutil.copytree(base.folder, folder / "model"))
    for pack in packs:
        model = model.add(pack)
    return model


def masks(labels):
    return {name: labels.mask(name) for name in labels.names.values()}


def named(labels):
    """The organ of every voxel, by name."""
    return np.array(["", *labels.names.values()])[np.searchsorted([0, *labels.names], labels.voxels)]


def same_masks(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_packs_with_colliding_organs_install_in_any_order(base, packs, tmp_path, contents, scan):
    one, other = (
        installed(base, tmp_path / name, order) for name, order in (("ab", packs), ("ba", packs[::-1]))
    )
    assert contents(one.folder) == contents(other.folder)
    assert one.organs == other.organs
    assert len({organ.id for organ in one.organs.values()}) == len(one.organs)
    assert (one.folder / "packs/b.pack").read_bytes() == packs[1].to_bytes()
    assert verify(one.folder).good
    labels = [Segmenter(model, config=QUIET)(scan).labels for model in (one, other)]
    assert np.array_equal(labels[0].voxels, labels[1].voxels)
    assert {*labels[0].names.values()} >= COLLIDING


def test_an_organ_is_the_same_voxels_whatever_its_id(base, packs, tmp_path, scan):
    model = installed(base, tmp_path / "both", packs)
    for pack in packs:
        alone = installed(base, tmp_path / pack.name, [pack])
        found = [Segmenter(each, packs=[pack.name], config=QUIET)(scan).labels for each in (model, alone)]
        assert same_masks(*map(masks, found))
        assert any(mask.any() for mask in masks(found[0]).values())
        assert {name: id_ for id_, name in found[0].names.items()} == {
            organ.name: model.organs[organ.name].id for organ in pack.organs
        }


def test_removing_a_pack_restores_bytes_and_ids(base, packs, tmp_path, contents):
    model = installed(base, tmp_path / "one", packs[:1])
    before, ids = contents(model.folder), model.organs
    assert contents(model.add(packs[1]).folder) != before
    restored = Model.open(model.folder).remove("b")
    assert contents(restored.folder) == before
    assert restored.organs == ids


def test_models_with_colliding_organs_segment_one_scan(base, packs, tmp_path, scan):
    """The first model names the organ of the id by another name than the second."""
    models = [installed(base, tmp_path / pack.name, [pack]) for pack in packs]
    together = [MultiSegmenter(order, config=QUIET)(scan).labels for order in (models, models[::-1])]
    assert together[0].names == together[1].names
    assert {*together[0].names.values()} >= COLLIDING
    found = [named(Segmenter(each, config=QUIET)(scan).labels) for each in models]
    merged = named(together[0])
    assert np.all((merged == "") | (merged == found[0]) | (merged == found[1]))
    assert len(COLLIDING & {*np.unique(merged)}) > 2


# Results


def test_codes_and_statistics_of_colliding_organs_differ(base, packs, tmp_path, scan):
    assert len({terms_of(name).kind.value for name in TRIPLE}) == len(TRIPLE)
    assert all(len(terms_of(name).kind.value) <= 16 for name in TRIPLE)
    labels = Segmenter(installed(base, tmp_path / "both", packs), config=QUIET)(scan).labels
    rows = organ_statistics(scan, [labels], [])
    assert {row["organ"]: row["id"] for row in rows} == {name: id_ for id_, name in labels.names.items()}
