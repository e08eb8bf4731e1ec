"""The anomaly map of a head: where its probability spreads to."""

import pytest
import torch

from continual_segment.learning.anomaly import new_head
from continual_segment.model.head import AnomalyHead
from continual_segment.segmentation.anomaly_decoder import PEAK, AnomalyDecoder, gaussian, smoothed

CPU = torch.device("cpu")


@pytest.fixture
def decoder(preset):
    """Makes a head of tumours with a radius; voxels are 2 x 4 mm within a slice."""

    def make(radius_mm):
        network = new_head(preset.network)
        weights = network.state_dict()
        head = AnomalyHead("h", ("t",), preset.network, "0" * 64, weights, {}, network.plan, radius_mm)
        return AnomalyDecoder(head, CPU, (2.0, 4.0))

    return make


def logits_of(disease):
    """Mean outputs of windows that mean this probability."""
    return torch.stack([torch.zeros_like(disease), disease.clamp(1e-6, 1 - 1e-6).logit()])


def disc(radius_mm, size=81):
    y, x = ((torch.arange(size) - size // 2) * mm for mm in (2.0, 4.0))
    return (y[:, None] ** 2 + x[None] ** 2 <= radius_mm**2).float()[None]


def test_disease_is_never_made_less_and_stays_a_probability(decoder):
    torch.manual_seed(0)
    disease = torch.rand(2, 20, 20)
    found = decoder(12.0).disease(logits_of(disease), None)
    assert (found >= disease - 1e-5).all()
    assert (found <= 1).all()


def test_a_map_without_a_radius_is_what_the_head_predicts(decoder):
    disease = torch.rand(1, 9, 9)
    torch.testing.assert_close(decoder(None).disease(logits_of(disease), None), disease)


def test_half_found_tumours_spread_by_their_size_in_millimetres(decoder):
    half = 0.5 * disc(20.0)
    found = decoder(20.0).disease(logits_of(half), None)[0].tolist()
    assert found[40][40] == pytest.approx(0.5, abs=0.02)  # the middle of a disc as large as a tumour
    assert found[40 + 12][40] == pytest.approx(found[40][40 + 6], abs=0.03)  # 24 mm along y and x
    assert 0.05 < found[40 + 12][40] < 0.5
    assert found[40 + 30][40] < 0.01  # 60 mm
    middle = smoothed(disc(20.0), gaussian(5.0), gaussian(2.5))[0, 40, 40]
    assert float(middle) == pytest.approx(PEAK, abs=0.02)


def test_slices_do_not_see_each_other(decoder):
    disease = torch.rand(3, 16, 16)
    whole = decoder(15.0).disease(logits_of(disease), None)
    for z in range(3):
        torch.testing.assert_close(
            whole[z : z + 1], decoder(15.0).disease(logits_of(disease[z : z + 1]), None)
        )
