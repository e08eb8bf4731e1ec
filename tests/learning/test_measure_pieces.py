"""What a step measures of the pieces of its organs."""

import numpy as np
import pytest

from continual_segment.learning.measure_pieces import (
    OrganInScan,
    largest_extent,
    measure_pieces,
    organs_in_scan,
    summarise,
)
from continual_segment.model import Model
from continual_segment.model.pieces import MOST_PIECES
from continual_segment.volume import Grid, LabelMap


def test_pieces_of_an_organ_include_those_of_its_parts():
    """Aorta, arch, aorta: one piece of 12 ml; the arch alone has two."""
    voxels = np.zeros((14, 3, 3), np.uint8)
    voxels[:12, 1, 1], voxels[2:4, 1, 1], voxels[8, 1, 1] = 1, 2, 2
    labels = LabelMap(voxels, Grid(voxels.shape, np.diag([10.0, 10, 10, 1])), {1: "aorta", 2: "aortic_arch"})
    found = dict(organs_in_scan(labels))
    pieces = {organ: sorted(each.pieces_ml.tolist()) for organ, each in found.items()}
    assert pieces == {"aorta": [pytest.approx(12.0)], "aortic_arch": [pytest.approx(1.0), pytest.approx(2.0)]}
    assert found["aorta"].extent_mm.tolist() == [120, 10, 10]
    assert found["aortic_arch"].extent_mm.tolist() == [70, 10, 10]
    assert found["aorta"].cut.tolist() == [True, False, False]
    assert not found["aortic_arch"].cut.any()


def test_loose_voxels_do_not_extend_an_organ():
    voxels = np.zeros((30, 12, 12), np.uint8)
    voxels[2:12, 2:7, 2:7] = voxels[25, 9, 9] = 1
    labels = LabelMap(voxels, Grid(voxels.shape, np.diag([2.0, 3.0, 4.0, 1])), {1: "liver"})
    assert dict(organs_in_scan(labels))["liver"].extent_mm.tolist() == [40, 15, 10]


def test_the_extent_is_not_known_where_the_longest_is_cut():
    def scan(extent, cut):
        return OrganInScan(np.ones(1), np.array(extent), np.array(cut))

    whole, cut = scan([80.0, 40.0, 30.0], [False] * 3), scan([90.0, 35.0, 20.0], [True, True, False])
    assert largest_extent([whole, cut]) == (None, 40.0, 30.0)
    assert largest_extent([whole]) == (80.0, 40.0, 30.0)


def test_negligible_pieces_do_not_count():
    found = summarise([np.array([100.0]), np.array([0.5, 99.5]), np.array([20.0, 60.0])])
    assert found.scans == 3
    assert found.pieces == (2, 1)
    assert found.volume_ml == (80.0, 100.0)
    assert found.largest_share == (0.75, pytest.approx((1 + 0.995 + 0.75) / 3))
    assert found.smallest_piece_ml == 20.0


def test_an_organ_in_very_many_pieces_is_one_in_many():
    assert len(summarise([np.ones(70)]).pieces) == MOST_PIECES
    assert len(summarise([np.ones(150)]).pieces) == MOST_PIECES  # each of them below a hundredth


def test_an_organ_without_a_piece_of_any_weight_has_an_extent():
    voxels = np.zeros((21, 21, 21), np.uint8)
    voxels[::2, ::2, ::2] = 1
    ((name, found),) = organs_in_scan(LabelMap(voxels, Grid(voxels.shape, np.eye(4)), {1: "spleen"}))
    assert name == "spleen"
    assert tuple(found.extent_mm) == (21.0, 21.0, 21.0)


def test_only_training_scans_are_measured(datasets, monkeypatch):
    dataset, opened = datasets["chest"], []
    case = dataset.case
    monkeypatch.setattr(dataset, "case", lambda name: opened.append(name) or case(name))
    found = measure_pieces(dataset)
    assert set(opened) == set(dataset.case_names("train"))
    assert set(found) == {organ.name for organ in dataset.organs}
    assert all(1 <= each.scans <= len(opened) for each in found.values())


def test_every_pack_that_is_learned_stores_them_and_nothing_of_a_patient(shared_model_folder, datasets):
    model = Model.open(shared_model_folder)
    for name in model.pack_names:
        pack = model.pack(name)
        assert pack.pieces == measure_pieces(datasets[name])
        assert not [case for case in datasets[name].splits if case in str(pack.card["pieces"])]
