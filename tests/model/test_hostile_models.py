"""Models and anomaly heads from strangers: their descriptions and weights are checked as those of packs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from continual_segment.errors import ModelError
from continual_segment.learning.anomaly import new_head
from continual_segment.model import Model, verify
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.model.head import AnomalyHead, add_head, anomaly_heads
from continual_segment.model.model import sha256
from continual_segment.networks import DecoderPlan
from continual_segment.segmentation import Segmenter

# ---- model.json


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../outside.pack": "0" * 64}},
        {"files": {"/etc/passwd": "0" * 64}},
        {"files": {"packs/../../x": "0" * 64}},
        {"files": {"packs\\..\\x": "0" * 64}},
        {"files": {"heads/a/b.head": "0" * 64}},
        {"files": {"elsewhere/x.pack": "0" * 64}},
        {"files": {"packs/x\x1b[2J.pack": "0" * 64}},
        {"files": {"packs/x.pack": "\x1b[2J"}},
        {"files": ["packs/x.pack"]},
        {"files": None},
        {"window": [10**6, 16, 16]},
        {"window": [8, 16]},
        {"window": ["8", "16", "16"]},
        {"window": 8},
        {"network": []},
        {"prepare": []},
        {"prepare": {"spacing_mm": [float("nan")] * 3}},
        {"encoder_fingerprint": "\x1b[2J"},
        {"format": "\x1b[2J"},
    ],
)
def test_a_hostile_model_json_is_refused(changes, base_folder):
    path = base_folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError) as refused:
        Model.open(base_folder)
    assert str(refused.value).isprintable()
    assert "model.json" in str(refused.value)


def test_a_model_json_nested_without_end_is_refused(base_folder):
    (base_folder / "model.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"model\.json"):
        Model.open(base_folder)


def test_a_pack_of_another_encoder_that_was_put_into_a_model_is_refused_when_it_is_used(
    base_folder, make_pack, scan_path
):
    foreign = replace(make_pack("foreign"), encoder_fingerprint="f" * 64)
    foreign.write(base_folder / "packs" / "foreign.pack")
    path = base_folder / "model.json"
    described = json.loads(path.read_text())
    described["files"]["packs/foreign.pack"] = sha256(foreign.to_bytes())
    path.write_text(json.dumps(described))
    with pytest.raises(ModelError, match="another encoder"):
        Segmenter(Model.open(base_folder))
    assert {finding.part for finding in verify(base_folder).findings if not finding.good} == {"foreign"}


# ---- anomaly heads


@pytest.fixture
def head(base_folder):
    model = Model.open(base_folder)
    torch.manual_seed(0)
    weights, plan = new_head(model.network).state_dict(), DecoderPlan.projections(model.network)
    return AnomalyHead("tumour", ("tumour",), model.network, model.encoder_fingerprint, weights, {}, plan)


def forge_head(head, path, tensors=None, **changes):
    tensors = head.weights if tensors is None else tensors
    covered = {"weights": fingerprint_tensors(tensors), "encoder": head.encoder_fingerprint}
    covered |= {"plan": head.plan.kernels, "radius_mm": changes.get("radius_mm", head.radius_mm)}
    described = head.described() | {"fingerprint": fingerprint_data(covered)} | changes
    path.write_bytes(save(tensors, {"head": json.dumps(described)}))
    return path


def test_a_head_is_read_as_it_was_written(head, base_folder):
    (read,) = anomaly_heads(add_head(Model.open(base_folder), head))
    assert read.fingerprint == head.fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../x"},
        {"name": 7},
        {"anomalies": "tumour"},
        {"anomalies": [1]},
        {"network": {"features": [10**6] * 3}},
        {"encoder_fingerprint": "\x1b[2J"},
        {"fingerprint": 5},
        {"format": 3},
        {"network": None},
        {"plan": None},
        {"plan": ["projection"] * 40},
        {"plan": ["\x1b[2J"] * 2},
        {"plan": ["projection@4096"] * 2},
        {"radius_mm": "wide"},
        {"radius_mm": -1.0},
        {"radius_mm": float("nan")},
        {"radius_mm": 1e9},
        {"radius_mm": True},
    ],
)
def test_a_hostile_head_is_refused(changes, head, tmp_path):
    with pytest.raises(ModelError, match=r"x\.head") as refused:
        AnomalyHead.read(forge_head(head, tmp_path / "x.head", **changes))
    assert str(refused.value).isprintable()


def test_a_head_with_other_tensors_is_refused(head, tmp_path, base_folder):
    name = "seg_layers.0.weight"
    weight = head.weights[name]
    for other in (weight[:1].contiguous(), weight.double()):
        with pytest.raises(ModelError, match=name):
            AnomalyHead.read(forge_head(head, tmp_path / "x.head", head.weights | {name: other}))
    broken = AnomalyHead.read(
        forge_head(head, tmp_path / "x.head", head.weights | {name: weight * torch.nan})
    )
    with pytest.raises(ModelError, match="finite"):
        add_head(Model.open(base_folder), broken)
