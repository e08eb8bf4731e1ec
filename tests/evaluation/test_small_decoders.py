"""Tables and pictures of searched and pruned decoders."""

import json
from dataclasses import asdict, replace

import pytest

from continual_segment.config import load_preset
from continual_segment.evaluation.report import small_decoders, write_report
from continual_segment.evaluation.small_decoders import architectures, choices, pareto_png, stage_shares
from continual_segment.lab.protocol import ProtocolDataset, run_protocol
from continual_segment.learning.selection import PathScore
from continual_segment.networks import Decoder, DecoderPlan, multiply_adds, paper_count


def path(mask, dice, parameters, cost, seconds=None):
    plan = tuple("projection" if on else "2d" for on in mask)
    sizes = {"paper_parameters": parameters, "true_parameters": parameters, "multiply_adds": cost}
    return PathScore(mask=mask, plan=plan, dice=dice, seconds=seconds, **sizes)


def remade(pack, plan, network, card):
    """The pack with another decoder, of an encoder that its assessment does not describe."""
    weights = Decoder(network, plan, len(pack.organs)).state_dict()
    return replace(pack, plan=plan, network=network, card=card, weights=weights, assessment=None)


@pytest.fixture
def paths():
    return [
        path((False, False), 0.90, 100, 100),
        path((False, True), 0.895, 90, 30),
        path((True, False), 0.86, 20, 90),
        path((True, True), 0.85, 10, 20),
    ]


@pytest.fixture
def small_pack(chest_pack, paths):
    """A pack with a card as pruning writes it."""
    prune = {
        "paths": [asdict(one) for one in paths],
        "chosen": 1,
        "choices": {"5": 3, "1": 1, "3": 1},
        "final_dice": 0.9,
    }
    card = chest_pack.card | {"prune": prune, "seconds": {"train": 10.0, "search": 15.0, "prune": 5.0}}
    plan = DecoderPlan(("projection", "2d"))
    return remade(chest_pack, plan, chest_pack.network, json.loads(json.dumps(card)))


def test_a_tolerance_is_told_with_its_path_and_what_it_loses(small_pack, paths):
    table = choices(small_pack)
    assert [choice.tau for choice in table] == ["1", "3", "5"]
    assert [choice.path for choice in table] == [paths[1], paths[1], paths[3]]
    assert [choice.loss for choice in table] == pytest.approx([0.5, 0.5, 5.0])


def test_architectures_are_told_with_sizes_and_their_share_of_nnunets_decoder(small_pack, chest_pack):
    small, usual, total = architectures([small_pack, chest_pack])
    network, window = small_pack.network, small_pack.card["patches"]["size"]
    assert small.kernels == ("projection", "2d")
    assert small.parameters == paper_count(small_pack.plan, network)
    assert small.multiply_adds == multiply_adds(small_pack.plan, network, window, len(small_pack.organs))
    assert (usual.parameters_share, usual.multiply_adds_share) == (1, 1)
    assert total.parameters == small.parameters + usual.parameters
    assert total.parameters_share == pytest.approx(1 + small.parameters_share)
    assert total.multiply_adds_share == pytest.approx(1 + small.multiply_adds_share)


def test_the_papers_four_decoders_give_its_total(small_pack):
    network = load_preset("paper").network
    plans = [
        ("p3d", "p3d", "2d", "projection", "2d"),
        ("projection", "p3d", "p3d", "2d", "2d"),
        ("projection", "p3d", "3d", "p3d", "p3d"),
        ("projection",) * 5,
    ]
    card = small_pack.card | {"patches": {"size": [64, 128, 128]}}
    packs = [remade(small_pack, DecoderPlan(plan), network, card) for plan in plans]
    total = architectures(packs)[-1]
    assert total.parameters == 14_668_800
    assert total.parameters_share == pytest.approx(0.9735, abs=1e-4)


def test_shares_of_time_are_told_against_training(small_pack, chest_pack):
    assert stage_shares(small_pack) == {"search": 1.5, "prune": 0.5}
    assert stage_shares(chest_pack) == {}


def test_all_paths_are_drawn(small_pack, paths):
    assert pareto_png(small_pack).startswith(b"\x89PNG")
    timed = [asdict(replace(one, seconds=0.1)) for one in paths]
    card = small_pack.card | {"prune": small_pack.card["prune"] | {"paths": timed}}
    wider = pareto_png(replace(small_pack, card=card))
    assert int.from_bytes(wider[16:20]) > int.from_bytes(pareto_png(small_pack)[16:20])  # a panel more


def test_packs_that_were_only_trained_show_nothing(chest_pack, small_pack):
    assert small_decoders([chest_pack]) is None
    shown = small_decoders([chest_pack, small_pack])
    assert [pack for pack, _, _ in shown["pruned"]] == [small_pack]
    assert len(shown["architectures"]) == 3


def test_a_protocol_with_all_stages_ends_with_a_report_of_them(raw_datasets, preset, quick, tmp_path):
    config = quick(preset.with_stages(("train", "search", "prune")), iterations=4, report_every=4)
    datasets = {"base": ProtocolDataset(raw_datasets["totalseg"])}
    report = run_protocol(tmp_path, datasets, config, held_out=1)
    page = write_report(tmp_path, report, ["none"]).read_text()
    assert "<h2>Small decoders</h2>" in page
    assert "Dice of all candidates of base" in page
    assert "not pruned" in page
    assert report.verification.good
    decoders = json.loads((tmp_path / "scores.json").read_text())["decoders"]
    assert [row["name"] for row in decoders] == ["base", "all packs"]
