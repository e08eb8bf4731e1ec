"""Segmenters remove islands: labels, scores, explanation, manifest and summary agree."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest

from continual_segment.cli.main import main
from continual_segment.files import read_labels, read_scan
from continual_segment.model import Model
from continual_segment.segmentation import MultiSegmenter, SegmentConfig, Segmenter
from continual_segment.volume import Grid, LabelMap

QUIET = SegmentConfig(progress=False)
KEEP = SegmentConfig(progress=False, keep_islands=True)


@pytest.fixture(scope="module")
def model(shared_model_folder):
    return Model.open(shared_model_folder)


@pytest.fixture(scope="module")
def scan(scan_path):
    return read_scan(scan_path)


@pytest.fixture(scope="module")
def segmenter(model):
    return Segmenter(model, config=QUIET)


@pytest.fixture(scope="module")
def found(segmenter, scan):
    return segmenter(scan, explain=True)


def copy_of(labels):
    return LabelMap(labels.voxels.copy(), labels.grid, labels.names)


def test_islands_are_removed_from_the_labels_that_the_rule_decides(model, scan, segmenter, found):
    kept = Segmenter(model, config=KEEP)(scan)
    expected = copy_of(kept.labels)
    removed = segmenter.merge_rule().remove_islands(expected)
    assert removed.islands
    np.testing.assert_array_equal(found.labels.voxels, expected.voxels)
    assert found.removed == removed.islands
    assert kept.removed == ()


def test_packs_that_did_not_measure_pieces_are_not_cleaned_up(model_folder, scan):
    """Packs of earlier versions: the same fingerprint, and every label stays."""
    model = Model.open(model_folder)
    expected = Segmenter(model, config=KEEP)(scan, scores=True)
    for name in model.pack_names:
        pack = model.pack(name)
        old = replace(pack, card={key: value for key, value in pack.card.items() if key != "pieces"})
        assert old.fingerprint == pack.fingerprint
        model = model.remove(name).add(old)
    found = Segmenter(model, config=QUIET)(scan, scores=True)
    assert found.removed == ()
    assert found.labels.voxels.tobytes() == expected.labels.voxels.tobytes()
    assert found.scores.voxels.tobytes() == expected.scores.voxels.tobytes()


def test_scores_and_explanation_are_those_of_what_is_left(found):
    labels, scores, explanation = found.labels.voxels, found.scores.voxels, found.explanation
    np.testing.assert_array_equal(scores > 0, labels > 0)
    np.testing.assert_array_equal(explanation.packs.voxels > 0, labels > 0)
    ids = {name: label for label, name in found.labels.names.items()}
    quality = {each.organ: each for each in explanation.quality}
    assert set(quality) == set(found.labels.organs)
    for organ in {each.organ for each in found.removed} & quality.keys():
        inside = labels == ids[organ]
        assert quality[organ].volume_ml == pytest.approx(inside.sum() * found.labels.grid.voxel_ml, abs=1e-2)
        assert quality[organ].mean_score == pytest.approx(scores[inside].mean(), abs=1e-3)
        assert 0 <= quality[organ].contested_share <= 1
        winners = explanation.packs.voxels[inside]
        for number, pack in explanation.packs.names.items():
            assert quality[organ].packs.get(pack, 0) == pytest.approx((winners == number).mean(), abs=1e-4)


def test_labels_on_other_grids_have_no_islands_either(segmenter, scan):
    affine = scan.grid.affine.copy()
    affine[1, 2] += 2 * affine[1, 1]  # every slice two pixels further, as of a tilted gantry
    found = segmenter(scan, extra_grids=[Grid(scan.grid.shape, affine)])
    (sheared,) = found.labels_on
    assert sheared.voxels.any()
    assert found.removed
    assert segmenter.merge_rule().remove_islands(copy_of(sheared)).islands == ()


def test_several_models_are_cleaned_up_once_after_merging(model, base_model_folder, scan):
    models = [Model.open(base_model_folder), model]
    segmenter = MultiSegmenter(models, config=QUIET)
    expected = MultiSegmenter(models, config=KEEP)(scan).labels
    removed = segmenter.remove_islands(expected)
    found = segmenter(scan, explain=True)
    assert removed.islands
    assert found.removed == removed.islands
    np.testing.assert_array_equal(found.labels.voxels, expected.voxels)
    np.testing.assert_array_equal(found.explanation.packs.voxels > 0, expected.voxels > 0)
    assert not found.scores.voxels[expected.voxels == 0].any()


def test_manifest_and_summary_list_what_was_removed(scan_path, shared_model_folder, found, tmp_path, caplog):
    cleaned, kept = tmp_path / "cleaned", tmp_path / "kept"
    command = f"segment {scan_path} -m {shared_model_folder} -o"
    caplog.set_level(logging.INFO)
    assert main([*command.split(), str(kept / "x.nii.gz"), "--keep-islands"]) == 0
    assert "Clean-up" not in caplog.text
    assert main([*command.split(), str(cleaned / "x.nii.gz")]) == 0
    assert "Clean-up" in caplog.text
    np.testing.assert_array_equal(read_labels(cleaned / "x.nii.gz").voxels, found.labels.voxels)
    listed, nothing = (json.loads((each / "manifest" / "x.json").read_text()) for each in (cleaned, kept))
    assert [(row["organ"], row["ml"], row["pieces"]) for row in listed["removed_islands"]] == [
        (each.organ, each.ml, each.pieces) for each in found.removed
    ]
    assert nothing["removed_islands"] == []
    assert listed["request"]["pieces"]
    assert nothing["request"]["settings"]["keep_islands"] is True
