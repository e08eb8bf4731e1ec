"""Models and packs of format 1, written by version 0.1, keep their fingerprints and their labels."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from continual_segment.model import Model, OrganPack, verify
from continual_segment.model.fingerprint import environment
from continual_segment.model.head import anomaly_heads
from continual_segment.model.model import encoder_fingerprint
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.volume import Grid, Volume

STORED = Path(__file__).with_name("format_1")
ENCODER = "d0db8725879bdf82aca3ec6b7ccdeda833c91c04a155f672d99087e551e9c936"


@pytest.fixture
def model(tmp_path):
    """The stored model with its pack `base`, in a folder that a test may change."""
    return Model.open(shutil.copytree(STORED / "model", tmp_path / "model"))


def made_up_scan():
    """Blobs between air and bone; the same voxels on every machine."""
    coarse = torch.from_numpy(np.random.default_rng(143).uniform(-1000, 600, (1, 1, 4, 5, 5)))
    fine = torch.nn.functional.interpolate(coarse, size=(20, 26, 22), mode="trilinear")[0, 0]
    voxels = fine.numpy().round().astype(np.int16)
    return Volume(voxels, Grid(voxels.shape, np.diag([16.0, 16.0, 16.0, 1.0])))


def test_the_fingerprints_are_those_of_the_day_they_were_made(model):
    assert model.encoder_fingerprint == ENCODER
    assert encoder_fingerprint(model.load_encoder(), model.prepare) == ENCODER
    assert [head.encoder_fingerprint for head in anomaly_heads(model)] == [ENCODER]
    assert verify(model.folder).good


def test_a_stored_pack_installs_and_every_probe_agrees(model):
    model.add(OrganPack.read(STORED / "chest.pack"))
    checked = verify(model.folder)
    assert checked.good, checked
    assert Model.open(model.folder).pack_names == ("base", "chest")


def test_reading_and_writing_changes_no_byte(model):
    for path in (model.pack_path("base"), STORED / "chest.pack"):
        assert OrganPack.read(path).to_bytes() == path.read_bytes()


def test_the_labels_of_a_scan_are_those_of_version_0_1(model):
    pack = OrganPack.read(STORED / "chest.pack")
    labels = Segmenter(model.add(pack), config=SegmentConfig(progress=False))(made_up_scan()).labels.voxels
    expected = np.load(STORED / "labels.npz")["labels"]
    assert len(np.unique(expected)) == 10
    if pack.probe_environment == environment():
        assert np.array_equal(labels, expected)
    else:  # another processor may round a tie the other way
        assert (labels == expected).mean() > 0.999
