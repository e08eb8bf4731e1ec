"""The regressor as a whole: learned, calibrated, written, read, asked."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_nnunet import made_checkpoint, made_plans, write_model
from safetensors.torch import save
from scipy.stats import spearmanr

from continual_segment.body_parts import BodyPartConfig, BodyPartRegressor, learn_body_parts
from continual_segment.body_parts.learn import scan_of
from continual_segment.body_parts.regions import Calibration, rise_per_mm
from continual_segment.body_parts.slices import RowConfig, SliceView
from continual_segment.cli.main import main
from continual_segment.clinic.outputs import OutputConfig
from continual_segment.clinic.segment import segment
from continual_segment.data.prepare import PrepareConfig, prepare
from continual_segment.data.raw import RawDataset
from continual_segment.errors import ModelError
from continual_segment.files import write_scan
from continual_segment.lab.phantom import write_phantom
from continual_segment.model import Model, verify
from continual_segment.model.nnunet import import_nnunet
from continual_segment.networks.slice_scorer import SliceScorer
from continual_segment.segmentation import SegmentConfig
from continual_segment.volume import Grid, Volume

REAL = Path(__file__).parents[3] / "shared" / "data" / "open-kbp" / "Dataset104_EsophagusTumour"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Phantoms with all labels, vertebrae among them."""
    folder = tmp_path_factory.mktemp("bodies")
    spacing = (12.0, 12.0, 12.0)
    raw = write_phantom(folder, "totalseg", 6, 0, spacing, workers=1, progress=False)
    opened = RawDataset.open(raw, workers=1, check=False)
    return prepare(opened, folder / "prepared", PrepareConfig(spacing), workers=1, progress=False)


CONFIG = BodyPartConfig()
SMALL = replace(
    CONFIG, rows=RowConfig(scans=6, slices=4), train=replace(CONFIG.train, iterations=150, report_every=75)
)


@pytest.fixture(scope="module")
def regressor(dataset, tmp_path_factory):
    return learn_body_parts([dataset], SMALL, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def scan(dataset):
    """The tallest scan, seen in training: few updates learn no more than that."""
    return scan_of(max((dataset.case(name) for name in dataset.splits), key=lambda case: case.shape[0]))


def test_scores_rise_along_the_body_after_a_few_updates(regressor, scan):
    scores, body = regressor.scores(scan)
    assert scores.shape == body.shape == scan.grid.shape[:1]
    inside = np.flatnonzero(body)
    assert spearmanr(inside, scores[inside]).statistic > 0.9
    assert regressor.calibration.score_per_mm == pytest.approx(0.01, rel=0.6)


def test_landmarks_are_calibrated_from_below_to_above(regressor):
    marks = regressor.calibration.landmarks
    assert marks["L5"] < marks["T11"] < marks["T2"]


def test_turning_a_scan_over_turns_the_slope(regressor, scan):
    turned = Volume(scan.voxels[::-1], scan.grid)
    (up, _), (down, _) = regressor.scores(scan), regressor.scores(turned)
    np.testing.assert_allclose(down[::-1], up, atol=1e-4)
    heights = np.arange(len(up)) * 12.0
    assert rise_per_mm(up, heights) > 0 > rise_per_mm(down, heights)


def test_finer_slices_get_the_scores_of_the_same_heights(regressor, scan):
    twice = Volume(
        np.repeat(scan.voxels, 2, axis=0), scan.grid.with_shape((2 * len(scan.voxels), *scan.grid.shape[1:]))
    )
    coarse, fine = regressor.scores(scan)[0], regressor.scores(twice)[0]
    np.testing.assert_allclose((fine[::2] + fine[1::2]) / 2, coarse, atol=0.35)


def test_a_stopped_run_ends_with_the_same_weights(dataset, regressor, tmp_path, monkeypatch):
    def stop(path, text):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("continual_segment.training.history.write_text", stop)
    with pytest.raises(KeyboardInterrupt, match="stopped after iteration 75"):
        learn_body_parts([dataset], SMALL, tmp_path)
    monkeypatch.undo()
    assert learn_body_parts([dataset], SMALL, tmp_path).fingerprint == regressor.fingerprint


def test_a_file_read_back_is_the_same_regressor(regressor, scan, tmp_path):
    for name in ("a", "b"):
        regressor.write(tmp_path / name / "body_parts.safetensors")
    path = tmp_path / "a" / "body_parts.safetensors"
    assert path.read_bytes() == (tmp_path / "b" / "body_parts.safetensors").read_bytes()
    again = BodyPartRegressor.read(tmp_path / "a")  # as a model folder
    assert again.fingerprint == regressor.fingerprint
    np.testing.assert_array_equal(again.scores(scan)[0], regressor.scores(scan)[0])
    assert "totalseg" not in json.dumps(again.card["rows"])


def test_changed_weights_and_other_files_are_refused(regressor, tmp_path):
    path = tmp_path / "x.safetensors"
    regressor.write(path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ModelError, match="not the weights"):
        BodyPartRegressor.read(path)
    path.write_bytes(b"no safetensors")
    with pytest.raises(ModelError, match="no body-part regressor"):
        BodyPartRegressor.read(path)
    with pytest.raises(ModelError, match="`conseg bodyparts PREPARED --learn"):
        BodyPartRegressor.read(tmp_path / "gone")


@pytest.mark.parametrize(
    "view", [{"size": 10**6}, {"slice_mm": 1e-7}, {"pixel_mm": 0.0}, {"size": "x"}, {"window_hu": ["a", 1]}]
)
def test_a_view_that_would_need_any_amount_of_memory_is_refused(view, regressor, tmp_path):
    path = tmp_path / "x.safetensors"
    described = regressor.described()
    text = json.dumps(described | {"view": described["view"] | view})
    path.write_bytes(save(regressor.weights, metadata={"body_parts": text}))
    with pytest.raises(ModelError, match="description is damaged"):
        BodyPartRegressor.read(path)


def test_a_model_gets_a_regressor_that_segmenting_asks(dataset, model_without_regressor):
    words = f"bodyparts {dataset.folder} --learn -m {model_without_regressor} --iterations 4"
    assert main(words.split()) == 0
    assert BodyPartRegressor.of_model(Model.open(model_without_regressor)) is not None
    assert verify(model_without_regressor).good


@pytest.fixture
def model_without_regressor(tmp_path):
    stock = write_model(tmp_path / "stock", made_plans(), checkpoint=made_checkpoint())
    return import_nnunet(stock, tmp_path / "model")[0].folder


def test_a_scan_of_air_and_a_short_one_are_unknown(regressor, scan):
    air = Volume(np.full_like(scan.voxels, -1000), scan.grid)
    assert (regressor.regions(air).body_part == -1).all()
    short = Volume(scan.voxels[:4], Grid((4, *scan.grid.shape[1:]), scan.grid.affine))
    assert (regressor.regions(short).body_part == -1).all()


def test_from_a_prepared_dataset_to_printed_body_parts(dataset, scan, tmp_path, capsys):
    file, path = tmp_path / "parts.safetensors", tmp_path / "scan.nii.gz"
    write_scan(path, scan)
    assert main(f"bodyparts {dataset.folder} --learn -m {file} --iterations 4".split()) == 0
    assert "Wrote" in capsys.readouterr().out
    assert not (tmp_path / "parts.safetensors.run" / "checkpoint.pt").exists()
    assert main(f"bodyparts {dataset.folder} --learn -m {file}".split()) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(f"bodyparts {path} -m {file} --json".split()) == 0
    data = json.loads(capsys.readouterr().out)[str(path)]
    assert {"starts_mm", "slices", "unknown_slices", "reversed", "reasons"} == data.keys()
    assert main(f"bodyparts {path} -m {file}".split()) == 0
    assert str(path) in capsys.readouterr().out


class Ramp(SliceScorer):
    """Scores by brightness, for scans whose slices brighten upwards."""

    def forward(self, slices):
        return slices.mean(dim=(1, 2, 3))


def test_segmenting_asks_the_regressor_where_packs_may_be_left_out(
    regressor, shared_model_folder, scan_path, tmp_path, monkeypatch
):
    regressor.write(tmp_path / "parts.safetensors")
    asked = []

    def regions(self, scan, config=None):
        asked.append(scan)
        return original(self, scan, config)

    original = BodyPartRegressor.regions
    monkeypatch.setattr(BodyPartRegressor, "regions", regions)
    out = tmp_path / "labels.nii.gz"
    config = SegmentConfig(progress=False)
    outputs = OutputConfig(body_parts=tmp_path / "parts.safetensors")
    assert segment(scan_path, shared_model_folder, out, config=config, outputs=outputs) == {}
    assert len(asked) == 1
    assert out.is_file()


def test_known_scores_become_known_millimetres():
    """A scan that brightens by 10 HU per slice of 6 mm, and landmarks at known brightness."""
    slices = 60
    voxels = np.broadcast_to((10 * np.arange(slices) - 300)[:, None, None], (slices, 56, 56)).astype(np.int16)
    affine = np.diag([8.0, 8.0, 6.0, 1.0])
    affine[2, 3] = -180.0
    marks = {name: (10 * at - 300) / 1000 for name, at in (("L5", 15), ("T11", 30), ("T2", 45))}
    calibration = Calibration(marks, 0.01 / 6, -1, 1)
    regressor = BodyPartRegressor(SliceScorer().state_dict(), SliceView(), calibration)
    object.__setattr__(regressor, "_network", Ramp())
    found = regressor.regions(Volume(voxels, Grid(voxels.shape, affine)))
    assert found.starts_mm == pytest.approx({"abdomen": -90, "chest": 0, "head_neck": 90}, abs=4)
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real scans of OpenKBP are not on this machine ({REAL})")
def test_a_real_scan_is_scored_and_never_breaks(regressor):
    from continual_segment.files import read_scan

    scan = read_scan(min((REAL / "imagesTr").iterdir()))
    found = regressor.regions(
        scan
    )  # phantoms alone teach little of real bodies: any answer, but an ordered one
    known = found.body_part[found.body_part >= 0].astype(int)
    assert (np.diff(known) >= 0).all() or (np.diff(known) <= 0).all()
    assert len(found.body_part) == scan.grid.shape[0]
