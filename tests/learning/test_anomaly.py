"""Anomaly heads: added at any time, nothing else changes, and merging listens to them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from continual_segment.cli.main import main
from continual_segment.config import load_preset
from continual_segment.data.augment import AugmentConfig
from continual_segment.errors import ModelError
from continual_segment.files import read_scan
from continual_segment.learning import learn_dataset, learn_jointly
from continual_segment.learning.anomaly import (
    DiseaseSource,
    learn_anomaly,
    new_head,
    tumour_radius_mm,
)
from continual_segment.learning.step import run_folder
from continual_segment.learning.train_decoder import PatchSource
from continual_segment.model import Model, verify
from continual_segment.model.head import AnomalyHead, add_head, anomaly_heads
from continual_segment.networks import DecoderPlan, paper_count
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.segmentation.anomaly_decoder import AnomalyDecoder
from continual_segment.volume import Grid, LabelMap


@pytest.fixture
def config(preset, quick):
    return quick(preset, iterations=2, report_every=2)


def test_a_head_added_later_changes_no_byte_of_encoder_and_packs(model_folder, datasets, config, contents):
    before = contents(model_folder)
    learn_anomaly(datasets["chest"], model_folder, config, "first")
    learn_anomaly(
        datasets["chest"], model_folder, replace(config, later=replace(config.later, seed=1)), "more"
    )
    after = contents(model_folder)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"model.json", "heads/first.head", "heads/more.head"}
    assert after["heads/first.head"] != after["heads/more.head"]
    assert verify(model_folder).good
    assert not list(run_folder(model_folder, "first.head").rglob("checkpoint.pt"))
    with pytest.raises(ModelError, match="has an anomaly head 'first' already"):
        learn_anomaly(datasets["chest"], model_folder, config, "first")
    path = model_folder / "heads/first.head"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert [finding.part for finding in verify(model_folder).findings if not finding.good] == ["first"]
    with pytest.raises(ModelError, match="not the weights the head was made with"):
        AnomalyHead.read(path)


def test_a_head_of_another_encoder_is_refused(model_folder, datasets, config):
    head = learn_anomaly(datasets["chest"], model_folder, config, "mine")
    with pytest.raises(ModelError, match="was learned on another encoder"):
        add_head(Model.open(model_folder), replace(head, name="other", encoder_fingerprint="0" * 64))


def test_a_head_has_the_paper_s_share_of_a_decoder(model_folder, datasets, config):
    head = learn_anomaly(datasets["chest"], model_folder, config, "small")
    assert set(head.plan.kernels) == {"projection"}
    for name in ("laptop", "paper"):
        network = load_preset(name).network
        whole, small = DecoderPlan.nnunet(network), new_head(network).plan
        assert 0.037 <= paper_count(small, network) / paper_count(whole, network) <= 0.04


def test_all_labels_are_one_disease(datasets, preset):
    source = DiseaseSource(datasets["chest"], preset.patches, AugmentConfig.none())
    plain = PatchSource(datasets["chest"], preset.patches, AugmentConfig.none())
    settings = replace(preset.later, iterations=4, validation_batches=4)
    for batches in ("training", "validation"):
        images, labels = getattr(plain, batches)(settings)[1]
        same, diseased = getattr(source, batches)(settings)[1]
        assert torch.equal(images, same)
        assert torch.equal(diseased, (labels > 0).long())
        assert labels.max() > 1


def test_the_radius_is_that_of_balls_of_the_tumours_volumes(datasets, monkeypatch):
    labels = np.zeros((20, 20, 20), np.uint8)
    labels[2:6, 2:6, 2:6] = 1  # 64 voxels
    labels[12:14, 12:14, 12:14] = 2  # 8 voxels
    made = LabelMap(labels, Grid(labels.shape, np.diag([5.0, 5.0, 5.0, 1.0])), {1: "a", 2: "b"})
    monkeypatch.setattr("continual_segment.learning.anomaly.label_map", lambda *_: made)
    radii = [np.cbrt(0.75 / np.pi * count * 125) for count in (64, 8)]
    assert tumour_radius_mm(datasets["chest"]) == pytest.approx(np.mean(radii), abs=0.01)
    labels[:] = 0
    assert tumour_radius_mm(datasets["chest"]) is None


def test_heads_learn_with_the_encoder_of_a_new_model(datasets, config, tmp_path):
    folder = tmp_path / "model"
    (pack,) = learn_jointly([datasets["totalseg"]], folder, config, tumours=[datasets["chest"]])
    model = Model.open(folder)
    (head,) = anomaly_heads(model)
    assert pack.name == datasets["totalseg"].name
    assert head.name == datasets["chest"].name
    assert head.encoder_fingerprint == model.encoder_fingerprint
    assert head.anomalies == tuple(organ.name for organ in datasets["chest"].learnable().organs)
    assert verify(folder).good
    learn_dataset(datasets["totalseg"], tmp_path / "alone", config)
    assert Model.open(tmp_path / "alone").encoder_fingerprint != model.encoder_fingerprint


def test_the_command_learns_heads_with_a_new_model(datasets, tmp_path, capsys):
    words = ["learn", datasets["totalseg"].folder, "--tumours", datasets["chest"].folder, "--preset", "tiny"]
    assert main([*map(str, words), "-m", str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert f"now has pack '{datasets['totalseg'].name}'" in printed
    assert f"now has anomaly head '{datasets['chest'].name}'" in printed
    assert main([*map(str, words), "-m", str(tmp_path / "other"), "--anomaly-head"]) == 2
    assert "Leave --with and --tumours out" in capsys.readouterr().err


def test_the_command_learns_a_head(model_folder, datasets, capsys):
    words = ["learn", datasets["chest"].folder, "-m", model_folder, "--preset", "tiny", "--anomaly-head"]
    assert main([*map(str, words), "--name", "tumours"]) == 0
    assert "now has anomaly head 'tumours'" in capsys.readouterr().out
    assert [head.name for head in anomaly_heads(Model.open(model_folder))] == ["tumours"]


def test_where_tissue_is_diseased_the_disease_aware_pack_counts(model_folder, datasets, config, scan_path):
    head = learn_anomaly(datasets["chest"], model_folder, config, "everything")
    scan = read_scan(scan_path)
    segmenter = Segmenter(
        Model.open(model_folder), config=SegmentConfig(progress=False, merge="background-aware")
    )
    assert segmenter.heads == []  # no pack is disease-aware, so no head is needed
    usual = segmenter(scan).labels.voxels
    segmenter.packs[0].profile = replace(segmenter.packs[0].profile, anomaly_aware=True)
    assert segmenter._uses_anomalies
    found = {}
    for sure in (-50.0, 50.0):
        finest = len(head.plan.kernels) - 1
        head.weights[f"seg_layers.{finest}.weight"].zero_()
        head.weights[f"seg_layers.{finest}.bias"].copy_(torch.tensor([0.0, sure]))
        segmenter.heads = [AnomalyDecoder(head, torch.device("cpu"), (10.0, 10.0))]
        found[sure] = segmenter(scan).labels.voxels
    assert (found[-50.0] == usual).all()  # healthy everywhere
    assert (found[50.0] != usual).any()
