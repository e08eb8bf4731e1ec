"""Several models on one scan: laws of the merged result."""

import numpy as np
import pytest

from continual_segment.errors import ModelError
from continual_segment.files import read_scan
from continual_segment.model import Model
from continual_segment.segmentation import MultiSegmenter, SegmentConfig, Segmenter, open_segmenter
from continual_segment.segmentation.merge import RULES

QUIET = SegmentConfig(progress=False)


@pytest.fixture(scope="module")
def base(base_model_folder):
    return Model.open(base_model_folder)


@pytest.fixture(scope="module")
def both(shared_model_folder):
    return Model.open(shared_model_folder)


@pytest.fixture(scope="module")
def scan(scan_path):
    return read_scan(scan_path)


@pytest.fixture(scope="module")
def alone(base, scan):
    return Segmenter(base, config=QUIET)(scan, scores=True)


@pytest.mark.parametrize("rule", RULES)
def test_a_model_beside_itself_changes_nothing(base, scan, alone, rule):
    config = SegmentConfig(progress=False, merge=rule)
    expected = Segmenter(base, config=config)(scan).labels.voxels
    found = MultiSegmenter([base, base], config=config)(scan).labels
    assert np.array_equal(found.voxels, expected)
    assert found.names == alone.labels.names


def test_a_model_with_other_organs_adds_them(base, both, scan):
    """Where one model has a label that the other does not know, and the other has none, the label stays."""
    config = SegmentConfig(progress=False, nested=False)
    names = [organ.name for organ in both.pack("chest").organs if organ.name not in base.organs]
    first, other = (Segmenter(model, config=config)(scan).labels for model in (base, both))
    merged = MultiSegmenter([base, both], config=config)(scan).labels
    assert set(merged.organs) <= {*base.organs, *both.organs}
    for name in names:
        (label,) = (key for key, known in other.names.items() if known == name)
        clear = (other.voxels == label) & (first.voxels == 0)
        assert (merged.voxels[clear] == label).all()
    assert {*merged.organs} & {*names}


def test_the_explanation_names_the_models(base, both, scan):
    found = MultiSegmenter([base, both], config=QUIET)(scan, explain=True)
    assert set(found.explanation.packs.names.values()) == {f"1 {base.folder.name}", f"2 {both.folder.name}"}
    assert np.array_equal(found.explanation.packs.voxels > 0, found.labels.voxels > 0)
    assert {each.organ for each in found.explanation.quality} == set(found.labels.organs)
    assert (found.scores.voxels[found.labels.voxels > 0] > 0).all()


def test_organs_restrict_every_model(base, both, scan):
    organ = next(name for name in both.organs if name not in base.organs)
    segmenter = MultiSegmenter([base, both], organs=[organ], config=QUIET)
    assert [each.name for each in segmenter.organs] == [organ]
    assert len(segmenter.segmenters) == 1  # the other model knows none of them and does not run
    assert set(segmenter(scan).labels.organs) <= {organ}


@pytest.mark.parametrize("asked", [{"organs": ["larinx"]}, {"packs": ["cheest"]}, {"organs": []}])
def test_what_no_model_has_is_refused(base, both, asked):
    with pytest.raises(ModelError):
        MultiSegmenter([base, both], config=QUIET, **asked)


def test_an_organ_that_the_requested_packs_do_not_know_is_refused(base, both):
    organ = next(name for name in both.organs if name not in base.organs)
    with pytest.raises(ModelError, match=f"None of the requested packs has the organ {organ}"):
        MultiSegmenter([base, both], organs=[organ], packs=base.pack_names, config=QUIET)


def test_every_requested_pack_is_asked_for_the_organs_that_it_knows(base, both):
    """Both models have the pack of the first; only the second has the chest."""
    chest = next(organ.name for organ in both.pack("chest").organs if organ.name not in base.organs)
    other = next(name for name in base.organs if name not in {o.name for o in both.pack("chest").organs})
    found = MultiSegmenter([base, both], organs=[chest, other], config=QUIET)
    assert {organ.name for organ in found.organs} == {chest, other}
    with pytest.raises(ModelError, match=other):
        MultiSegmenter([base, both], organs=[chest, other], packs=["chest"], config=QUIET)


def test_one_model_is_segmented_as_ever(base):
    assert isinstance(open_segmenter([base], config=QUIET), Segmenter)
    assert isinstance(open_segmenter([base, base], config=QUIET), MultiSegmenter)
