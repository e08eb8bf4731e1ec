"""dataset.json: what the output channels mean, and who made the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_nnunet import DATASET, made_checkpoint, made_state, write_model

from continual_segment.errors import ModelError
from continual_segment.model.nnunet import NnunetModel

CONSECUTIVE = {"background": 0, "liver": 1, "spleen": 2, "aorta": 3, "lung_left": 4}
REGIONS = {"background": 0, "kidney": [1, 2], "tumor": 2, "organs": [1, 2, 3]}


def opened(tmp_path: Path, channels: int = 5, **changes: Any) -> NnunetModel:
    """A model with that dataset.json whose heads have so many output channels."""
    state = {
        name: torch.zeros(channels, *tensor.shape[1:]) if "seg_layers" in name else tensor
        for name, tensor in made_state().items()
    }
    folder = tmp_path / "model"
    return NnunetModel.open(write_model(folder, dataset=DATASET | changes, checkpoint=made_checkpoint(state)))


def test_labels_are_listed_by_channel(tmp_path: Path) -> None:
    labels = opened(tmp_path).labels
    assert labels.names == ("Liver", "Right Kidney", "third thing", "Left Kidney")
    assert labels.values == ((1,), (2,), (3,), (4,))
    assert (labels.has_regions, labels.channels, labels.ignore) == (False, 5, None)
    assert [organ.name for organ in labels.organs][:2] == ["liver", "kidney_right"]


def test_regions_have_no_background_channel(tmp_path: Path) -> None:
    model = opened(tmp_path, channels=3, labels=REGIONS, regions_class_order=[3, 1, 2])
    assert model.labels.names == ("kidney", "tumor", "organs")
    assert model.labels.values == ((1, 2), (2,), (1, 2, 3))
    assert model.labels.regions_class_order == (3, 1, 2)
    assert (model.labels.has_regions, model.labels.channels) == (True, 3)
    assert any("regions" in note for note in model.report.notes)


def test_the_ignore_label_is_no_channel(tmp_path: Path) -> None:
    model = opened(tmp_path, labels=CONSECUTIVE | {"ignore": 5})
    assert model.labels.ignore == 5
    assert "ignore" not in model.labels.names
    assert any("'ignore'" in note for note in model.report.notes)


def test_a_single_number_in_a_list_is_a_label(tmp_path: Path) -> None:
    labels = opened(tmp_path, labels=CONSECUTIVE | {"aorta": [3]}, regions_class_order=None).labels
    assert not labels.has_regions
    assert labels.names[2] == "aorta"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"labels": {"liver": 1}}, "background"),
        ({"labels": {"background": 1, "liver": 2}}, "background"),
        ({"labels": {"background": 0}}, "organ"),
        ({"labels": {"background": 0, "liver": 1, "spleen": 3}}, "1, 3"),
        ({"labels": {"background": 0, "liver": 1, "spleen": 1}}, "1, 1"),
        ({"labels": {"background": 0, "liver": -1}}, "-1"),
        ({"labels": {"background": 0, "liver": []}}, "label values"),
        ({"labels": {"background": 0, "liver": 1.5}}, "liver|labels"),
        ({"labels": {"background": 0, "liver": 1, "ignore": 1}}, "ignore"),
        ({"labels": {"background": 0, "liver": 1, "ignore": [2, 3]}}, "ignore"),
        ({"labels": {"background": 0, "??": 1}}, "name"),
        ({"labels": {"background": 0, "left kidney": 1, "kidney_left": 2}}, "kidney_left"),
        ({"labels": REGIONS}, "regions_class_order has 0"),
        ({"labels": REGIONS, "regions_class_order": [1, 2]}, "regions_class_order has 2"),
        ({"channel_names": {"0": "CT", "1": "PET"}}, "2 input channels"),
        ({"channel_names": None}, "0 input channels"),
        ({"channel_names": {"0": "CT"}, "modality": {"0": "CT", "1": "PET"}}, "2 input channels"),
    ],
)
def test_labels_and_channels_that_cannot_be_are_refused(
    changes: dict[str, Any], found: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=rf"dataset\.json.*({found})"):
        opened(tmp_path, **changes)


def test_the_older_name_of_channels_is_read(tmp_path: Path) -> None:
    assert opened(tmp_path, channel_names=None, modality={"0": "CT"}).modality == "CT"


def test_a_wrong_number_of_organs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"seg_layers.*\(7, .*instead of \(5, "):
        opened(tmp_path, channels=7)


def test_attribution_is_read_whatever_its_form(tmp_path: Path) -> None:
    texts = opened(
        tmp_path,
        name="Made",
        description="two\nlines\x1b[31m",
        license="CC-BY-4.0",
        reference=["one", "two"],
        release=1.5,
    ).attribution
    assert (texts.name, texts.licence, texts.release) == ("Made", "CC-BY-4.0", "1.5")
    assert texts.description == "two lines�[31m"
    assert texts.reference == "one, two"
    assert texts.citation == ""


@pytest.mark.parametrize(
    ("changes", "licence"),
    [
        ({}, ""),
        ({"licence": "Apache-2.0", "license": "other"}, "Apache-2.0"),
        ({"licence": "The author was lazy and didn't look it up!"}, ""),
        ({"licence": "The author was lazy and didn't look it up!", "license": "MIT"}, "MIT"),
    ],
)
def test_the_licence_has_two_spellings_and_a_placeholder(
    changes: dict[str, str], licence: str, tmp_path: Path
) -> None:
    assert opened(tmp_path, **changes).attribution.licence == licence
