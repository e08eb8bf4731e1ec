"""learn as a user calls it: paths, preset names, a loss, a network and an intensity of one's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import continual_segment as cs
from continual_segment.data.intensity import Intensity
from continual_segment.data.prepare import prepare
from continual_segment.errors import ConfigError, DatasetError
from continual_segment.files import read_scan
from continual_segment.learning import StageConfig
from continual_segment.learning.anomaly import learn_anomaly
from continual_segment.learning.distil import DistilConfig
from continual_segment.learning.prune import PruneConfig
from continual_segment.learning.search import SearchConfig
from continual_segment.model.head import anomaly_heads
from continual_segment.segmentation import SegmentConfig
from continual_segment.training import LossConfig, history, supervised_loss

SHORT = "preset = 'tiny'\n[first]\niterations = 2\n[later]\niterations = 2\n[body_parts]\nlearned = false\n"


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")


@pytest.fixture
def short(tmp_path):
    """The tiny preset, still shorter, as a file."""
    path = tmp_path / "short.toml"
    path.write_text(SHORT)
    return path


class Counted:
    """A loss of a user's own that counts its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, outputs, labels):
        self.calls.append(len(outputs))
        assert outputs[0].shape[2:] == labels.shape[1:]  # finest first
        return outputs[0].square().mean() + supervised_loss(outputs, labels)


def test_learn_takes_paths_and_preset_files(datasets, short, tmp_path):
    pack = cs.learn(str(datasets["totalseg"].folder), str(tmp_path / "model"), str(short), name="base")
    assert pack.card["train"]["iterations"] == 2
    assert cs.Model.open(tmp_path / "model").pack_names == ("base",)
    assert cs.learn(datasets["chest"], tmp_path / "model", cs.load_preset(short)).name == "Dataset902_chest"


def test_what_is_no_dataset_or_preset_is_refused(datasets, tmp_path):
    with pytest.raises(DatasetError, match="there is no such folder"):
        cs.learn(tmp_path / "gone", tmp_path / "model", "tiny")
    with pytest.raises(ConfigError, match="neither a preset"):
        cs.learn(datasets["chest"], tmp_path / "model", "huge")


@pytest.mark.parametrize(
    ("stages", "updates"),
    [
        (("train", "search"), 2 + 2 + 1 + 2),  # training, search with one update of kernels, retraining
        (("train", "prune"), 2 + 4 + 4 + 2),  # training, two blocks to adapt to, fine-tuning
    ],
)
def test_a_loss_of_ones_own_trains_every_stage(stages, updates, datasets, short, base_folder):
    config = replace(
        cs.load_preset(short),
        stage=StageConfig(stages),
        search=SearchConfig(iterations_share=1.0, retrain_share=1.0),
        distil=DistilConfig(students_share=4.0, adapt_share=1.0),
        prune=PruneConfig(candidates=0, fine_tune_share=1.0, validation_windows=2),
    )
    loss = Counted()
    pack = cs.learn(datasets["chest"], base_folder, config, "mine", loss=loss)
    assert loss.calls == [2] * updates  # two outputs each time
    assert pack.card["train"]["loss"] == {"function": f"{__name__}.Counted"}
    usual = cs.learn(datasets["chest"], base_folder, config, "usual")
    assert usual.fingerprint != pack.fingerprint


def test_settings_of_the_loss_are_given_as_such(datasets, short, tmp_path):
    pack = cs.learn(datasets["totalseg"], tmp_path / "model", short, loss=LossConfig("present", 0.5))
    assert pack.card["train"]["loss"]["dice_over"] == "present"
    with pytest.raises(ConfigError, match=r"deep_supervision.*3 weights.*2 outputs"):
        cs.learn(
            datasets["chest"], tmp_path / "model", short, "c", loss=LossConfig(deep_supervision=(1, 1, 1))
        )
    assert not (tmp_path / "model.runs" / "c").exists()


@pytest.mark.parametrize(
    "intensity",
    [
        Intensity("z-score", (-1024.0, 1024.0), padding="zero"),
        Intensity("ct-percentiles", (-990.5, 390.0), mean=-120.0, std=300.0),
    ],
)
def test_a_residual_encoder_on_another_intensity_is_learned_extended_stored_and_segments(
    intensity, raw_datasets, short, tmp_path, scan_path
):
    config = cs.load_preset(short)
    network = replace(config.network, encoder="residual", encoder_convs=(1, 2, 1), decoder_convs=(1, 2))
    config = replace(config, network=network, prepare=replace(config.prepare, intensity=intensity))
    folder = tmp_path / "model"
    for name in ("totalseg", "chest"):
        dataset = prepare(raw_datasets[name], tmp_path / name, config.prepare, workers=1, progress=False)
        stages = ("train",) if name == "totalseg" else ("train", "search")
        cs.learn(dataset, folder, replace(config, stage=StageConfig(stages)), name)
    model = cs.Model.open(folder)
    assert cs.verify(folder).good
    assert (model.network, model.prepare) == (network, config.prepare)
    assert '"format": 2' in (folder / "model.json").read_text()
    assert model.pack("chest").described()["format"] == 2
    assert cs.OrganPack.read(model.pack_path("chest")).to_bytes() == model.pack_path("chest").read_bytes()
    labels = cs.Segmenter(model, config=SegmentConfig(progress=False))(scan_path).labels
    assert labels.voxels.shape == read_scan(scan_path).voxels.shape


def test_a_model_learns_no_dataset_of_another_intensity(raw_datasets, base_folder, preset, tmp_path):
    other = replace(preset.prepare, intensity=Intensity("z-score"))
    dataset = prepare(raw_datasets["chest"], tmp_path / "chest", other, workers=1, progress=False)
    with pytest.raises(DatasetError, match=r"z-score.*Prepare the raw dataset again"):
        cs.learn(dataset, base_folder, "tiny")


def test_a_residual_network_takes_anomaly_heads(datasets, short, tmp_path):
    config = cs.load_preset(short)
    config = replace(config, network=replace(config.network, encoder="residual"))
    cs.learn(datasets["totalseg"], tmp_path / "model", config, "base")
    learn_anomaly(datasets["chest"], tmp_path / "model", config, "tumour")
    (head,) = anomaly_heads(cs.Model.open(tmp_path / "model"))
    assert head.described()["format"] == 2
    features = cs.Model.open(tmp_path / "model").load_encoder()(torch.rand(1, 1, 8, 16, 16))
    assert np.isfinite(head.head()(features).numpy()).all()
