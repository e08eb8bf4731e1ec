"""What a new pack measures of itself."""

import json

import pytest
import torch

from continual_segment.learning.assess import (
    BINS,
    LEAST_VOXELS,
    MOST_ODDS,
    AssessConfig,
    CalibrationCounts,
    assess,
    fit_temperature,
)
from continual_segment.networks import Decoder, DecoderPlan


def counts_at(temperature, per_bin=10_000):
    """Bins of log-odds whose organ is there as often as the odds at this temperature predict."""
    odds = ((torch.arange(BINS, dtype=torch.float64) + 0.5) * 2 / BINS - 1) * MOST_ODDS
    voxels = torch.full((BINS,), float(per_bin), dtype=torch.float64)
    return voxels, voxels * torch.sigmoid(odds / temperature)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6, 3.0])
def test_the_temperature_makes_probabilities_right(temperature):
    assert fit_temperature(*counts_at(temperature)) == pytest.approx(temperature, rel=0.03)


def test_a_certain_and_wrong_pack_has_a_high_temperature():
    voxels = torch.zeros(BINS, dtype=torch.float64)
    voxels[0] = voxels[-1] = 100
    assert fit_temperature(voxels, voxels / 2) == 4.0


def test_dice_and_odds_are_counted_per_organ():
    labels = torch.tensor([[[[0, 1, 1, 2]]]])
    found = torch.tensor([0, 1, 2, 2])
    logits = torch.nn.functional.one_hot(found, 3).T.float().view(1, 3, 1, 1, 4) * 5
    counts = CalibrationCounts(2)
    counts.add(logits, labels)
    one, two = counts.assessed()
    assert (one.dice, two.dice) == (pytest.approx(2 / 3, abs=1e-4), pytest.approx(2 / 3, abs=1e-4))
    assert (one.voxels, two.voxels) == (2, 1)
    assert counts.voxels.sum(dim=1).tolist() == [4, 4]
    assert counts.true.sum(dim=1).tolist() == [2, 1]


@pytest.fixture
def decoder(phantom_step):
    torch.manual_seed(4)
    return Decoder(phantom_step.encoder.config, DecoderPlan(("p3d", "2d")), phantom_step.organs)


def test_an_assessment_depends_on_weights_and_scans_alone(phantom_step, decoder):
    first = assess(phantom_step, decoder, AssessConfig(windows=8))
    torch.manual_seed(9)
    assert assess(phantom_step, decoder, AssessConfig(windows=8)) == first
    assert first.domain.scans == len(phantom_step.source.dataset.case_names("train"))
    assert len(first.domain.mean) == sum(phantom_step.encoder.config.features)
    assert all(each.voxels >= LEAST_VOXELS for each in first.organs.values())


def test_without_windows_nothing_is_measured(phantom_step, decoder):
    assert assess(phantom_step, decoder, AssessConfig(windows=0)) is None


@pytest.mark.parametrize("wrong", [{"windows": -1}, {"scans": 1}, {"directions": 17}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AssessConfig(**wrong)


def test_a_learned_pack_is_assessed_and_names_no_case(chest_pack, datasets):
    assert chest_pack.assessment is not None
    assert chest_pack.assessment.organs.keys() <= {organ.name for organ in chest_pack.organs}
    text = json.dumps(chest_pack.described())
    assert not [name for name in datasets["chest"].case_names("train") if name in text]
