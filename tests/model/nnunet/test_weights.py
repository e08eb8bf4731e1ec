"""Weights that are not those of the plans are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from made_nnunet import STATE_NAMES, made_checkpoint, made_plans, made_state, own_name, write_model

from continual_segment.errors import ModelError
from continual_segment.model.nnunet import NnunetModel
from continual_segment.model.nnunet.architecture import read_architecture
from continual_segment.model.nnunet.weights import expected_shapes

NORM = "encoder.stages.0.0.convs.0.norm"
HEAD = "decoder.seg_layers.0.bias"


def opened(tmp_path: Path, state: dict[str, torch.Tensor], **changes: Any) -> NnunetModel:
    return NnunetModel.open(write_model(tmp_path / "model", checkpoint=made_checkpoint(state, **changes)))


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_expected_names_and_shapes_are_those_of_nnunets_own_classes(kind: str) -> None:
    settings = made_plans(kind)["configurations"]["3d_fullres"]
    expected = expected_shapes(read_architecture(settings, (8, 16, 16), "plans.json"), 5)
    stored = json.loads(STATE_NAMES[kind].read_text())
    assert {own_name(name): tuple(shape) for name, shape in stored.items()} == expected


def test_a_network_with_batch_norm_is_refused_with_its_trainer(tmp_path: Path) -> None:
    state = made_state() | {f"{NORM}.running_mean": torch.zeros(4)}
    with pytest.raises(ModelError, match=r"1 not in the plans.*running_mean.*nnUNetTrainerBN"):
        opened(tmp_path, state, trainer_name="nnUNetTrainerBN")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in made_state().items() if name != HEAD}
    with pytest.raises(ModelError, match=rf"1 missing.*{HEAD}"):
        opened(tmp_path, state)


def test_a_layer_may_be_stored_once_alone(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in made_state().items() if name == own_name(name)}
    model = opened(tmp_path, state)
    assert model.weights.keys() == state.keys()


def test_a_layer_with_two_different_values_is_refused(tmp_path: Path) -> None:
    twice = f"decoder.{NORM}.weight"
    with pytest.raises(ModelError, match=twice):
        opened(tmp_path, made_state() | {twice: torch.zeros(4)})


def test_plans_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing.*not in the plans.*of another shape"):
        opened(tmp_path, made_state("residual"))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([0.0, 1, 2, torch.nan, 0]),
        torch.tensor([0.0, 1, 2, torch.inf, 0]),
        torch.tensor([0, 1, 2, 3, 4]),
        torch.zeros(5, dtype=torch.complex64),
    ],
)
def test_weights_that_are_no_finite_numbers_are_refused(tensor: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=HEAD):
        opened(tmp_path, made_state() | {HEAD: tensor})
