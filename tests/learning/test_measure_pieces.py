"""What a step measures of the pieces of its organs."""

import numpy as np
import pytest

from continual_segment.learning.measure_pieces import measure_pieces, summarise, volumes_of_pieces
from continual_segment.model import Model
from continual_segment.model.pieces import MOST_PIECES
from continual_segment.volume import Grid, LabelMap


def test_pieces_of_an_organ_include_those_of_its_parts():
    """Aorta, arch, aorta: one piece of 12 ml; the arch alone has two."""
    voxels = np.zeros((14, 3, 3), np.uint8)
    voxels[:12, 1, 1], voxels[2:4, 1, 1], voxels[8, 1, 1] = 1, 2, 2
    labels = LabelMap(voxels, Grid(voxels.shape, np.diag([10.0, 10, 10, 1])), {1: "aorta", 2: "aortic_arch"})
    found = {organ: sorted(pieces.tolist()) for organ, pieces in volumes_of_pieces(labels)}
    assert found == {"aorta": [pytest.approx(12.0)], "aortic_arch": [pytest.approx(1.0), pytest.approx(2.0)]}


def test_negligible_pieces_do_not_count():
    found = summarise([np.array([100.0]), np.array([0.5, 99.5]), np.array([20.0, 60.0])])
    assert found.scans == 3
    assert found.pieces == (2, 1)
    assert found.volume_ml == (80.0, 100.0)
    assert found.largest_share == (0.75, pytest.approx((1 + 0.995 + 0.75) / 3))
    assert found.smallest_piece_ml == 20.0


def test_an_organ_in_very_many_pieces_is_one_in_many():
    assert len(summarise([np.ones(70)]).pieces) == MOST_PIECES


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
