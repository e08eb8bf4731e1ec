"""A pack of an imported model becomes a model folder of nnU-Net again, or one clear refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from made_nnunet import (
    ARCHITECTURES,
    DATASET,
    FINAL,
    FOLDER,
    made_checkpoint,
    made_plans,
    made_state,
    plans_with,
    without_bias,
    write_model,
)
from stock_forward import stock_logits

import continual_segment as cs
from continual_segment.cli.main import main
from continual_segment.errors import ModelError
from continual_segment.model import Model, OrganPack
from continual_segment.model.nnunet import NnunetModel
from continual_segment.networks import Decoder, DecoderPlan
from continual_segment.organs import find_organ

REGIONS = {"labels": {"background": 0, "kidney": [1, 2], "tumor": 2}, "regions_class_order": [1, 2]}
PLAIN = ARCHITECTURES["plain"]["arch_kwargs"]


def two_channels(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor[:2] if "seg_layers" in name else tensor for name, tensor in state.items()}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]]] = {
    "plain": (made_plans(), {"licence": "CC-BY-4.0"}, made_state()),
    "residual": (made_plans("residual"), {}, made_state("residual")),
    "no bias": (plans_with({"conv_bias": False}), {}, without_bias(made_state())),
    "regions": (made_plans(), REGIONS, two_channels(made_state())),
    "ignore": (made_plans(), {"labels": DATASET["labels"] | {"ignore": 5}}, made_state()),
}


def imported(tmp_path: Path, case: str = "plain", **checkpoint: Any) -> Model:
    plans, described, state = CASES[case]
    saved = made_checkpoint(state, **checkpoint)
    source = write_model(tmp_path / "source" / FOLDER, plans, DATASET | described, saved)
    return cs.import_nnunet(source, tmp_path / "model")[0]


def learned(model: Model, plan: DecoderPlan | None = None, **known: Any) -> OrganPack:
    """A second pack with weights of its own."""
    torch.manual_seed(3)
    decoder = Decoder(model.network, plan or DecoderPlan.nnunet(model.network), 2)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    organs = (find_organ("larynx"), find_organ("esophagus"))
    encoder = model.load_encoder()
    return OrganPack.of("larynx", organs, encoder, decoder, model.encoder_fingerprint, **known)


def checkpoint_in(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "fold_0" / FINAL, weights_only=True)


@pytest.mark.parametrize("case", CASES)
def test_import_export_import_keeps_every_bit_and_the_fingerprint(case: str, tmp_path: Path) -> None:
    model = imported(tmp_path, case)
    folder = cs.export_nnunet(model.folder, "Made", tmp_path / "out")
    weights = checkpoint_in(folder)["network_weights"]
    state = CASES[case][2]
    assert weights.keys() == state.keys()  # duplicates, too: nnU-Net loads strictly
    assert all(torch.equal(weights[name], tensor) for name, tensor in state.items())
    for file in ("plans.json", "dataset.json"):
        source = tmp_path / "source" / FOLDER / file
        assert json.loads((folder / file).read_text()) == json.loads(source.read_text())
    again, report = cs.import_nnunet(folder, tmp_path / "again")
    assert again.pack("Made").fingerprint == model.pack("Made").fingerprint
    assert again.encoder_fingerprint == model.encoder_fingerprint
    assert not any("changed" in note for note in report.notes)


@pytest.mark.parametrize(("axes", "trainer"), [((0, 1), "nnUNetTrainer"), (None, "nnUNetTrainerNoMirroring")])
def test_the_trainer_is_one_that_stock_nnunet_has(axes: Any, trainer: str, tmp_path: Path) -> None:
    own = {"trainer_name": "MyTrainer", "inference_allowed_mirroring_axes": axes}
    model = imported(tmp_path, **own)
    folder = cs.export_nnunet(model.folder, "Made", tmp_path / "out")
    assert folder == tmp_path / "out" / f"{trainer}__nnUNetPlans__3d_fullres"
    saved = checkpoint_in(folder)
    assert (saved["trainer_name"], saved["inference_allowed_mirroring_axes"]) == (trainer, axes)
    assert (saved["current_epoch"], saved["init_args"]["configuration"]) == (1000, "3d_fullres")


@pytest.mark.parametrize("case", ["plain", "no bias"])
def test_a_pack_learned_later_has_the_imported_encoder_and_its_own_decoder(case: str, tmp_path: Path) -> None:
    """Also on an encoder without biases: nnU-Net then builds the network with them."""
    model = imported(tmp_path, case)
    pack = learned(model, licence="CC0", card={"cases": {"train": 7}})
    model = model.add(pack)
    folder = cs.export_nnunet(model.folder, "larynx", tmp_path / "out")
    stock = NnunetModel.open(folder)
    assert [organ.name for organ in stock.labels.organs] == ["larynx", "esophagus"]
    assert stock.architecture.conv_bias
    encoder = CASES[case][2]
    name = "encoder.stages.0.0.convs.0.conv.weight"
    assert torch.equal(stock.weights[name], encoder[name])
    window = torch.randn(1, 1, *model.window)
    with torch.no_grad():
        ours = pack.decoder()(model.load_encoder()(window))
        theirs = stock_logits(stock.weights, PLAIN, window)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.std()))
    again, _ = cs.import_nnunet(folder, tmp_path / "again", name="larynx")
    assert again.encoder_fingerprint == model.encoder_fingerprint
    assert again.pack("larynx").fingerprint == pack.fingerprint


def test_both_licences_are_in_the_dataset_of_a_later_pack(tmp_path: Path) -> None:
    model = imported(tmp_path)
    model = model.add(learned(model, licence="CC0"))
    folder = cs.export_nnunet(model.folder, "larynx", tmp_path / "out")
    described = json.loads((folder / "dataset.json").read_text())
    assert described["labels"] == {"background": 0, "larynx": 1, "esophagus": 2}
    assert "CC0" in described["licence"]
    assert "CC-BY-4.0" in described["licence"]
    assert (described["file_ending"], described["channel_names"]) == (".nii.gz", {"0": "CT"})


def test_a_searched_decoder_is_refused_unless_it_is_nnunets(tmp_path: Path) -> None:
    model = imported(tmp_path)
    same = learned(model, DecoderPlan(("3d", "2d")))  # the kernels of the plans
    pruned = learned(model, DecoderPlan(("projection", "2d"))).renamed("pruned")
    narrow = learned(model, DecoderPlan(("nnunet@2", "nnunet"))).renamed(
        "narrow"
    )  # its kernels, fewer channels
    model = model.add(same).add(pruned).add(narrow)
    assert cs.export_nnunet(model.folder, "larynx", tmp_path / "out").is_dir()
    with pytest.raises(ModelError, match=r"'pruned'.*projection, 2d"):
        cs.export_nnunet(model.folder, "pruned", tmp_path / "none")
    with pytest.raises(ModelError, match=r"'narrow'.*nnunet@2"):
        cs.export_nnunet(model.folder, "narrow", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_model_that_was_not_imported_is_refused(base_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"not imported.*conseg pack export"):
        cs.export_nnunet(base_folder, "totalseg", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    model = imported(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    assert cs.export_nnunet(model.folder, "Made", out).is_dir()
    before = sorted(out.rglob("*"))
    with pytest.raises(ModelError, match=rf"{out}.*not an empty"):
        cs.export_nnunet(model.folder, "Made", out)
    with pytest.raises(ModelError, match="not an empty"):
        cs.export_nnunet(model.folder, "Made", model.folder / "model.json")
    assert sorted(out.rglob("*")) == before


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = imported(tmp_path)

    def full(content: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        cs.export_nnunet(model.folder, "Made", tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


def test_a_record_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    model = imported(tmp_path)
    path = model.folder / "nnunet.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(ModelError, match=r"nnunet\.json"):
        cs.export_nnunet(model.folder, "Made", tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"plans": {}}, "dataset_name"),
        ({"plans": made_plans("residual")}, "another network"),
        ({"plans": plans_with(spacing=[1.0, 1.0, 1.0])}, "another network or preparation"),
        ({"plans": made_plans(plans_name="../../x")}, "path separator"),
        ({"configuration": "2d"}, "2D"),
        ({"dataset": {"labels": {}}}, "background"),
        ({"fold": 7}, "fold"),
    ],
)
def test_a_record_of_a_stranger_is_checked(change: dict[str, Any], found: str, tmp_path: Path) -> None:
    model = imported(tmp_path)
    record = json.loads((model.folder / "nnunet.json").read_text()) | change
    described = json.loads((model.folder / "model.json").read_text())
    (model.folder / "nnunet.json").unlink()
    del described["files"]["nnunet.json"]
    (model.folder / "model.json").write_text(json.dumps(described))
    Model.open(model.folder).add_file("nnunet.json", json.dumps(record).encode())
    with pytest.raises(ModelError, match=found):
        cs.export_nnunet(model.folder, "Made", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_regions_that_the_model_does_not_describe_are_refused(tmp_path: Path) -> None:
    model = imported(tmp_path, "regions")
    decoder = Decoder(model.network, DecoderPlan.nnunet(model.network), 1, background=False)
    organs, encoder = (find_organ("liver"),), model.load_encoder()
    model = model.add(OrganPack.of("other", organs, encoder, decoder, model.encoder_fingerprint))
    with pytest.raises(ModelError, match="'other' has regions"):
        cs.export_nnunet(model.folder, "other", tmp_path / "out")


def test_the_commands_print_the_report_and_what_comes_next(tmp_path: Path, capsys: Any) -> None:
    source, model, out = write_model(tmp_path / FOLDER), tmp_path / "model", tmp_path / "out"
    assert main(["import", str(source), "-m", str(model), "--fold", "0", "--name", "total"]) == 0
    shown = capsys.readouterr().out
    for text in ("third thing", "nnUNetTrainer", "'total' with 4 organs", f"conseg segment SCAN -m {model}"):
        assert text in shown
    assert main(["import", str(source), "-m", str(model)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", "total", "-m", str(model), "-o", str(out)]) == 0
    assert f"nnUNetv2_predict_from_modelfolder -m {out / FOLDER}" in capsys.readouterr().out
    assert main(["export", "gone", "-m", str(model), "-o", str(tmp_path / "x")]) == 2
    assert "no pack 'gone'" in capsys.readouterr().err


def test_a_model_that_turns_scans_is_exported_with_a_word_about_it(tmp_path: Path, caplog: Any) -> None:
    plans, described, state = CASES["plain"]
    source = write_model(tmp_path / "source" / FOLDER, plans, DATASET | described, made_checkpoint(state))
    model, _ = cs.import_nnunet(source, tmp_path / "model", orientation="LPS")
    written = cs.export_nnunet(model.folder, model.pack_names[0], tmp_path / "out")
    assert (written / "plans.json").is_file()
    assert "turns every scan to LPS" in caplog.text
