"""Anomaly heads: added at any time, nothing else changes, and merging listens to them."""

from dataclasses import replace

import pytest
import torch

from continual_segment.cli.main import main
from continual_segment.errors import ModelError
from continual_segment.files import read_scan
from continual_segment.learning.anomaly import learn_anomaly
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, verify
from continual_segment.model.head import AnomalyHead, add_head, anomaly_heads
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.segmentation.pack_decoder import PackDecoder


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
        head.weights["head.weight"].zero_()
        head.weights["head.bias"].copy_(torch.tensor([0.0, sure]))
        segmenter.heads = [PackDecoder.of_head(head, torch.device("cpu"))]
        found[sure] = segmenter(scan).labels.voxels
    assert (found[-50.0] == usual).all()  # healthy everywhere
    assert (found[50.0] != usual).any()
