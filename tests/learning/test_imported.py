"""Learning on the encoder of an imported nnU-Net: every stage, and nothing imported changes."""

from dataclasses import replace

import pytest
from made_nnunet import made_checkpoint, made_plans, write_model

from continual_segment.cli.main import main
from continual_segment.data.prepare import prepare
from continual_segment.files import read_scan
from continual_segment.learning import StageConfig, learn_dataset
from continual_segment.learning.prune import PruneConfig
from continual_segment.model import Model, verify
from continual_segment.model.nnunet import import_nnunet
from continual_segment.segmentation import SegmentConfig, Segmenter

SPACING_MM = (16.0, 14.0, 18.0)


@pytest.fixture
def model_folder(tmp_path):
    plans = made_plans(transpose_forward=[2, 0, 1], transpose_backward=[1, 2, 0])
    plans["configurations"]["3d_fullres"]["spacing"] = list(SPACING_MM)
    import_nnunet(write_model(tmp_path / "stock", plans, checkpoint=made_checkpoint()), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def dataset(model_folder, raw_datasets, tmp_path):
    config = Model.open(model_folder).prepare
    return prepare(raw_datasets["chest"], tmp_path / "prepared", config, workers=1, progress=False)


@pytest.fixture
def config(preset, quick, no_pictures):
    learned = quick(preset, iterations=8, report_every=3, validation_batches=1)
    prune = PruneConfig(validation_windows=4, candidates=2, tau=100.0)  # whatever a small decoder loses
    return replace(learned, stage=StageConfig(("train", "search", "prune")), prune=prune)


def test_all_stages_leave_the_imported_pack_and_its_labels_as_they_were(
    model_folder, dataset, config, contents, scan_path
):
    quiet = SegmentConfig(progress=False)
    scan = read_scan(scan_path)
    before, labels = contents(model_folder), Segmenter(Model.open(model_folder), config=quiet)(scan).labels
    pack = learn_dataset(dataset, model_folder, config, "chest")
    after = contents(model_folder)
    assert {name for name in after if after[name] != before.get(name)} == {"model.json", "packs/chest.pack"}
    assert verify(model_folder).good
    assert "nnunet" not in pack.plan.kernels
    again = Segmenter(Model.open(model_folder), packs=["Made"], config=quiet)(scan).labels
    assert (again.voxels == labels.voxels).all()
    both = Segmenter(Model.open(model_folder), config=quiet)(scan).labels
    assert {*pack.organs} < {*Model.open(model_folder).organs.values()}
    assert both.voxels.shape == scan.voxels.shape


def test_a_dataset_prepared_our_own_way_is_refused(model_folder, datasets, config, capsys):
    assert main(["learn", str(datasets["chest"].folder), "-m", str(model_folder)]) == 2
    assert "nnU-Net" in capsys.readouterr().err
