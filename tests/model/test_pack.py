"""The pack file."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

from continual_segment.errors import ModelError
from continual_segment.model import Model, OrganPack, verify
from continual_segment.networks import DecoderPlan
from continual_segment.organs import find_organ


@pytest.fixture
def pack(make_pack):
    return make_pack(
        "thorax",
        coverage={"chest": 0.97},
        anomalies=("esophageal tumour",),
        licence="CC-BY-4.0",
        card={"cases": {"train": 4}},
    )


@pytest.fixture
def path(pack, tmp_path):
    pack.write(tmp_path / "thorax.pack")
    return tmp_path / "thorax.pack"


def test_what_is_written_is_read_again(pack, path):
    read = OrganPack.read(path)
    assert read.described() == pack.described()
    assert read.organs == (find_organ("esophagus"), find_organ("trachea"))
    assert read.plan == pack.plan
    assert read.network == pack.network
    assert (read.coverage, read.anomalies, read.licence) == (
        {"chest": 0.97},
        ("esophageal tumour",),
        "CC-BY-4.0",
    )
    assert read.weights.keys() == pack.weights.keys()
    assert all(torch.equal(read.weights[name], pack.weights[name]) for name in pack.weights)
    assert torch.equal(read.probe, pack.probe)


def test_the_same_pack_always_has_the_same_bytes(pack, path, make_pack):
    assert pack.to_bytes() == pack.to_bytes()
    assert OrganPack.read(path).to_bytes() == path.read_bytes()
    assert make_pack("a").to_bytes() == make_pack("a").to_bytes()


def test_a_pack_is_a_safetensors_file_with_nothing_pickled(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])  # the format: length, JSON, raw numbers
    assert set(header["__metadata__"]) == {"pack"}
    assert not content.startswith((b"PK", b"\x80"))  # zip and pickle
    assert b"torch._utils" not in content
    with safe_open(path, framework="pt") as file:
        assert "probe" in file.keys()  # noqa: SIM118 (not a dict)


def test_the_fingerprint_follows_weights_organs_and_encoder_but_not_the_name(pack, make_pack):
    assert pack.renamed("another").fingerprint == pack.fingerprint
    assert replace(pack, organs=pack.organs[::-1]).fingerprint != pack.fingerprint
    assert replace(pack, encoder_fingerprint="0" * 64).fingerprint != pack.fingerprint
    assert make_pack("thorax", seed=1).fingerprint != pack.fingerprint


def test_mirrored_axes_and_regions_are_format_2_and_part_of_the_fingerprint(pack, make_pack, tmp_path):
    assert (pack.regions, pack.mirror_axes, pack.described()["format"]) == (False, (), 1)
    assert not {"regions", "mirror_axes"} & pack.described().keys()
    mirrored = replace(pack, mirror_axes=(0, 2))
    regions = make_pack("regions", background=False)
    for special in (mirrored, regions):
        special.write(tmp_path / "special.pack")
        read = OrganPack.read(tmp_path / "special.pack")
        assert read.described() == special.described()
        assert read.described()["format"] == 2
        assert (read.regions, read.mirror_axes) == (special.regions, special.mirror_axes)
        assert read.to_bytes() == special.to_bytes()
    assert len({pack.fingerprint, mirrored.fingerprint, replace(pack, mirror_axes=(0,)).fingerprint}) == 3


def test_a_pack_with_blocks_of_reduced_width_is_format_2_and_runs_as_any_other(
    make_pack, base_folder, tmp_path
):
    narrow = make_pack("narrow", plan=("nnunet@3", "2d@2"))
    narrow.write(tmp_path / "narrow.pack")
    read = OrganPack.read(tmp_path / "narrow.pack")
    assert read.described()["format"] == 2
    assert read.plan.kernels == ("nnunet@3", "2d@2")
    assert read.to_bytes() == narrow.to_bytes()
    Model.open(base_folder).add(read)
    assert verify(base_folder).good
    with pytest.raises(ModelError, match="decoder of 'narrow'"):
        replace(narrow, plan=DecoderPlan(("nnunet@4", "2d@2")))


def test_a_pack_of_regions_has_no_background_and_is_checked_as_any_other(make_pack, base_folder):
    regions = make_pack("regions", background=False)
    assert regions.regions
    assert regions.decoder().head.out_channels == len(regions.organs) == len(regions.probe)
    Model.open(base_folder).add(regions)
    assert verify(base_folder).good
    with pytest.raises(ModelError, match="decoder of 'regions'"):
        replace(regions, regions=False)


def test_a_decoder_from_a_pack_is_only_read(pack):
    decoder = pack.decoder()
    assert not decoder.training
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


@pytest.mark.parametrize("name", ["", "two words", "../outside", ".hidden", "a/b", "längs"])
def test_names_that_are_no_file_names_everywhere_are_refused(name, pack):
    with pytest.raises(ModelError, match="A pack is named with letters, digits"):
        pack.renamed(name)


def test_a_file_that_is_no_pack_gets_a_sentence(tmp_path):
    for content in (b"", b"scan", b"\x80\x04." * 100):
        (tmp_path / "x.pack").write_bytes(content)
        with pytest.raises(ModelError, match=r"x\.pack: this is no organ pack, or a damaged one"):
            OrganPack.read(tmp_path / "x.pack")
    with pytest.raises(ModelError, match="no such pack file"):
        OrganPack.read(tmp_path / "gone.pack")
    with pytest.raises(ModelError, match="this is no organ pack"):
        OrganPack.read(tmp_path)


def test_a_pack_of_a_later_format_says_what_to_do(path):
    content = path.read_bytes().replace(rb"\"format\": 1", rb"\"format\": 7")
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"a pack of format 7; this version reads 1 and 2\. Update"):
        OrganPack.read(path)


def test_a_changed_weight_is_noticed_on_reading(path, pack):
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    for name in pack.weights:
        first, last = json.loads(content[8 : 8 + length])[f"decoder.{name}"]["data_offsets"]
        changed = content.copy()
        changed[8 + length + (first + last) // 2] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ModelError, match="the weights of pack 'thorax' are not those it was made with"):
            OrganPack.read(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_pack_gets_a_sentence(share, path):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match="this is no organ pack, or a damaged one"):
        OrganPack.read(path)
