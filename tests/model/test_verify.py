"""verify finds whatever has changed, and names it."""

import json
from dataclasses import replace

import pytest
import torch

from continual_segment.model import Model, verify
from continual_segment.model.fingerprint import probe_logits
from continual_segment.model.verify import _check_file, check_outputs


def failures(folder):
    return {finding.part for finding in verify(folder).findings if not finding.good}


def flip(path, position):
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def tensors_start(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_after_a_later_step_everything_is_bit_identical(shared_model_folder):
    found = verify(shared_model_folder)
    assert found.good
    assert [finding.part for finding in found.findings] == ["encoder", "body_parts", "chest", "totalseg"]
    assert str(found).count("weights unchanged, outputs bit-identical") == 2
    assert "FAIL" not in str(found)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
def test_one_flipped_weight_of_an_old_pack_is_found_and_the_pack_named(share, model_folder):
    path = model_folder / "packs/totalseg.pack"
    start = tensors_start(path)
    flip(path, start + int(share * (path.stat().st_size - start)))
    assert failures(model_folder) == {"totalseg"}
    assert f"{path} has changed" in str(verify(model_folder))


def test_a_flip_anywhere_in_the_header_is_found(model_folder):
    path = model_folder / "packs/chest.pack"
    whole = path.read_bytes()
    for position in (0, 3, 8, 30, tensors_start(path) // 2, tensors_start(path) - 1):
        flip(path, position)
        assert failures(model_folder) == {"chest"}, position
        path.write_bytes(whole)
    assert verify(model_folder).good


def test_only_of_a_pack_it_is_said_to_remove_and_to_add_it(model_folder):
    for name in ("encoder.safetensors", "body_parts.safetensors", "packs/chest.pack"):
        path = model_folder / name
        path.write_bytes(path.read_bytes() + b" ")
        model = Model.open(model_folder)
        sentence = _check_file(model, name).sentence
        assert f"{path} has changed" in sentence
        assert ("Remove the pack" in sentence) == name.startswith("packs/")


def test_a_truncated_and_a_missing_pack_are_found(model_folder):
    path = model_folder / "packs/chest.pack"
    path.write_bytes(path.read_bytes()[:-1])
    assert failures(model_folder) == {"chest"}
    path.unlink()
    assert failures(model_folder) == {"chest"}
    assert f"{path} is missing" in str(verify(model_folder))


@pytest.mark.parametrize("damage", [lambda path: flip(path, -1), lambda path: path.unlink()])
def test_a_changed_or_missing_encoder_is_found(damage, model_folder):
    damage(model_folder / "encoder.safetensors")
    assert failures(model_folder) == {"encoder"}
    assert "Restore the model from a copy" in str(verify(model_folder))


def test_a_header_of_the_encoder_that_was_changed_without_its_weights_is_found(model_folder):
    path = model_folder / "encoder.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    longer = content[8 : 8 + length] + b" " * 8
    path.write_bytes((length + 8).to_bytes(8, "little") + longer + content[8 + length :])
    assert failures(model_folder) == {"encoder"}


def test_a_pack_changed_together_with_its_checksum_is_found_by_its_own_fingerprint(model_folder):
    from hashlib import sha256

    path = model_folder / "packs/chest.pack"
    flip(path, tensors_start(path))
    described = json.loads((model_folder / "model.json").read_text())
    described["files"]["packs/chest.pack"] = sha256(path.read_bytes()).hexdigest()
    (model_folder / "model.json").write_text(json.dumps(described))
    assert failures(model_folder) == {"chest"}
    assert "are not those it was made with" in str(verify(model_folder))


def test_outputs_that_differ_where_they_were_taken_are_a_failure(model_folder):
    model = Model.open(model_folder)
    pack, encoder = model.pack("chest"), model.load_encoder()
    assert check_outputs(pack, encoder) == (True, "outputs bit-identical")
    nearly = replace(pack, probe_sha256="0" * 64, probe=pack.probe + 1e-6)
    assert not check_outputs(nearly, encoder)[0]


def test_elsewhere_outputs_may_differ_by_rounding_but_no_more(model_folder):
    model = Model.open(model_folder)
    pack, encoder = model.pack("chest"), model.load_encoder()
    elsewhere = replace(pack, probe_sha256="0" * 64, probe_environment="torch 1, another processor")
    good, sentence = check_outputs(replace(elsewhere, probe=pack.probe + 1e-5), encoder)
    assert good
    assert "made with torch 1, another processor, which rounds differently" in sentence
    assert not check_outputs(replace(elsewhere, probe=pack.probe + 0.1), encoder)[0]
    assert not check_outputs(replace(elsewhere, probe=pack.probe * torch.nan), encoder)[0]


def test_a_changed_or_missing_body_part_regressor_is_found(model_folder):
    path = model_folder / "body_parts.safetensors"
    flip(path, -1)
    assert failures(model_folder) == {"body_parts"}
    path.unlink()
    assert failures(model_folder) == {"body_parts"}


def test_networks_are_on_their_devices_again_after_the_probe(base_model_folder, monkeypatch):
    """The probe runs on the CPU; a training on a GPU continues with the same networks."""
    model = Model.open(base_model_folder)
    networks = model.load_encoder(), model.pack("totalseg").decoder()
    there = [next(network.parameters()).device for network in networks]
    moved = []
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *to: moved.append((self, *to)) or self)
    probe_logits(*networks)
    assert moved == list(zip(networks, there, strict=True))
