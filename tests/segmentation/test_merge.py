"""Where packs meet."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.segmentation.merge import Answer, highest_probability

# a voxel of one pack: background, or an organ with one of few scores, so that ties are frequent
voxels = st.one_of(
    st.just((0, 0.0)), st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.3, 0.5, 0.500001, 1.0]))
)


def merged(*packs):
    """Each pack is a list of (organ, score) per voxel; so is the result."""
    answers = [
        Answer(torch.tensor([o for o, _ in pack], dtype=torch.int32), torch.tensor([s for _, s in pack]))
        for pack in packs
    ]
    organ, score = highest_probability(answers)
    return list(zip(organ.tolist(), score.tolist(), strict=True))


def test_a_voxel_is_background_only_where_all_packs_say_so():
    assert merged([(0, 0.0), (0, 0.0)], [(0, 0.0), (5, 0.25)], [(0, 0.0), (0, 0.0)]) == [(0, 0.0), (5, 0.25)]


def test_the_surest_pack_wins():
    assert merged([(9, 0.5)], [(2, 0.25)], [(7, 0.75)]) == [(7, 0.75)]


def test_between_equals_the_lower_organ_id_wins():
    assert merged([(9, 0.5)], [(2, 0.5)], [(7, 0.5)]) == [(2, 0.5)]


def test_a_single_pack_is_taken_at_its_word():
    assert merged([(3, 0.25), (0, 0.0)]) == [(3, 0.25), (0, 0.0)]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(voxels, min_size=3, max_size=3), min_size=n, max_size=n)
    )
)
def test_the_order_of_packs_decides_nothing_and_the_winner_is_the_best(packs):
    results = [merged(*order) for order in itertools.permutations(packs)]
    assert all(result == results[0] for result in results)
    single = torch.tensor([0.0, 0.3, 0.5, 0.500001, 1.0]).tolist()  # as float32 rounds them
    rounded = dict(zip([0.0, 0.3, 0.5, 0.500001, 1.0], single, strict=True))
    for place, (organ, score) in enumerate(results[0]):
        named = [(-rounded[s], o) for o, s in (pack[place] for pack in packs) if o]
        assert (-score, organ) == (min(named) if named else (0, 0))
