"""Packs from strangers: they run, or they are refused with a ModelError; nothing is written elsewhere."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save

from continual_segment.cli.main import main
from continual_segment.cli.pack import parts_of
from continual_segment.errors import ModelError
from continual_segment.model import Model, OrganPack
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.model.pieces import OrganPieces
from continual_segment.segmentation.pack_decoder import PackDecoder


@pytest.fixture
def sound(make_pack, tmp_path):
    """A pack file that a model takes."""
    shares = {"chest": 0.5, "abdomen": 1.0}
    card = {"body_parts": {"distribution": shares}, "cases": {"train": 4}}
    pack = make_pack("sound", coverage=shares, anomalies=("tumour",), licence="CC0", card=card)
    pack.write(tmp_path / "sound.pack")
    return tmp_path / "sound.pack"


def description(path):
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return json.loads(header["__metadata__"]["pack"])


def forge(path, described, tensors=None):
    """Write a pack as a stranger could: with a fingerprint that fits, as far as it can be computed."""
    tensors = load_file(path) if tensors is None else tensors
    weights = {name.removeprefix("decoder."): t for name, t in tensors.items() if name != "probe"}
    try:
        covered = {
            "weights": fingerprint_tensors(weights),
            "plan": described["plan"],
            "organs": [organ["id"] for organ in described["organs"]],
            "encoder": described["encoder_fingerprint"],
        } | {key: described[key] for key in ("regions", "mirror_axes") if described.get(key)}
        described = described | {"fingerprint": fingerprint_data(covered)}
    except (KeyError, TypeError):
        pass
    path.write_bytes(save(tensors, {"pack": json.dumps(described)}))
    return path


def add(path, folder):
    return Model.open(folder).add(OrganPack.read(path))


def test_a_forged_copy_without_a_change_is_taken(sound, base_folder):
    assert "sound" in add(forge(sound, description(sound)), base_folder).pack_names


# ---- descriptions


def organ(**changes):
    def change(described):
        described["organs"][0] |= changes

    return change


def entry(*keys, value):
    def change(described):
        for key in keys[:-1]:
            described = described[key]
        described[keys[-1]] = value

    return change


PIECES = {
    "scans": 3,
    "pieces": [3],
    "volume_ml": [1.0, 2.0],
    "largest_share": [1.0, 1.0],
    "smallest_piece_ml": 0.0,
}


def organ_pieces(name=None, **changes):
    """What a card has of the pieces of an organ, by default the pack's first."""

    def change(described):
        known = name or described["organs"][0]["name"]
        described["card"]["pieces"] = {known: PIECES | changes}

    return change


HOSTILE = {
    "organ above": organ(name="../../patients/scan7", id=4321),
    "organ absolute": organ(name="/tmp/scan7", id=4321),
    "organ of two lines": organ(name="liver\nspleen", id=4321),
    "organ with escapes": organ(name="\x1b[2Jliver", id=4321),
    "organ with capitals": organ(name="Oesophagus_X", id=4321),
    "organ reserved": organ(name="nul", id=4321),
    "organ alias": organ(name="oesophagus", id=4321),
    "organ of another name": organ(name="liver"),
    "organ id 0": organ(id=0),
    "organ id -1": organ(id=-1),
    "organ id 65536": organ(id=65536),
    "organ id of another": organ(id=5),
    "organ without a number": organ(id="15"),
    "organ code": organ(snomed="1\x1b[2J"),
    "organ twice": lambda described: described["organs"].__setitem__(1, described["organs"][0]),
    "organ id twice": lambda described: described["organs"][1].update(id=described["organs"][0]["id"]),
    "no organ": entry("organs", value=[]),
    "organs of another type": entry("organs", value={"liver": 5}),
    "many convolutions": entry("network", "convs_per_stage", value=10**7),
    "35 TB": entry("network", "features", value=[10**6, 10**6, 10**6]),
    "much wider": entry("network", "features", value=[4096, 4096, 4096]),
    "other network": entry("network", "strides", value=[[1, 1, 1], [2, 2, 2], [1, 2, 2]]),
    "features of another type": entry("network", "features", value="468"),
    "network of another type": entry("network", value=[1, 2]),
    "huge strides": entry("network", "strides", value=[[1, 1, 1], [8, 8, 8], [8, 8, 2**70]]),
    "plan of other length": entry("plan", value=["2d"]),
    "plan of other kernels": entry("plan", value=["3d", "3d"]),
    "plan of other words": entry("plan", value=["rm", "-rf"]),
    "plan of other widths": entry("plan", value=["p3d@2", "2d"]),
    "plan of a huge width": entry("plan", value=["p3d@4096", "2d@4096"]),
    "plan of no width": entry("plan", value=["p3d@0", "2d@"]),
    "plan of another type": entry("plan", value=[["2d"], {}]),
    "name above": entry("name", value="../x"),
    "name of another type": entry("name", value=7),
    "probe hash": entry("probe_sha256", value="0" * 64),
    "probe hash of another type": entry("probe_sha256", value=[1]),
    "encoder": entry("encoder_fingerprint", value="\x1b[2J"),
    "coverage of a part that is none": entry("coverage", value={"\x1b[2J": 1.0}),
    "coverage NaN": entry("coverage", value={"chest": float("nan")}),
    "coverage in words": entry("coverage", value={"chest": "most"}),
    "coverage of another type": entry("coverage", value=["chest"]),
    "distribution in words": entry("card", "body_parts", "distribution", value={"chest": "half"}),
    "body parts of another type": entry("card", "body_parts", value=[1]),
    "pieces of another organ": organ_pieces("lung"),
    "pieces of another type": entry("card", "pieces", value=[PIECES]),
    "pieces in words": organ_pieces(pieces=["most"]),
    "pieces that do not add up": organ_pieces(pieces=[9]),
    "pieces of no scan": organ_pieces(scans=0, pieces=[]),
    "pieces below 0": organ_pieces(pieces=[5, -2]),
    "many pieces": organ_pieces(pieces=[3] + [0] * 10**5),
    "pieces of no volume": organ_pieces(volume_ml=[0, 1]),
    "pieces of NaN ml": organ_pieces(volume_ml=[1, float("nan")]),
    "pieces of a share above 1": organ_pieces(largest_share=[0.5, 1.5]),
    "card of another type": entry("card", value="trained well"),
    "anomalies in one text": entry("anomalies", value="tumour"),
    "anomalies of another type": entry("anomalies", value=[1, 2]),
    "licence of another type": entry("licence", value={"CC": 0}),
    "environment of another type": entry("probe_environment", value=None),
    "regions without weights for them": entry("regions", value=True),
    "regions of another type": entry("regions", value=1),
    "axis 3": entry("mirror_axes", value=[0, 3]),
    "axis -1": entry("mirror_axes", value=[-1]),
    "axis twice": entry("mirror_axes", value=[1, 1]),
    "axes not in order": entry("mirror_axes", value=[2, 0]),
    "axes of another type": entry("mirror_axes", value=[True]),
    "axes in a text": entry("mirror_axes", value="01"),
    "many axes": entry("mirror_axes", value=list(range(10**5))),
    "deep card": entry("card", value=json.loads("[" * 40 + "]" * 40)),
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_description_is_refused_and_the_model_stays_as_it_was(change, sound, base_folder, contents):
    described, before = description(sound), contents(base_folder)
    change(described)
    with pytest.raises(ModelError) as refused:
        add(forge(sound, described), base_folder)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1500
    assert contents(base_folder) == before


def test_pieces_of_an_organ_are_taken_if_they_can_be(sound, base_folder):
    described = description(sound)
    organ_pieces()(described)
    (found,) = add(forge(sound, described), base_folder).pack("sound").pieces.values()
    assert found == OrganPieces(3, (3,), (1.0, 2.0), (1.0, 1.0), 0.0)


def test_a_missing_entry_is_refused(sound, base_folder):
    for key in set(description(sound)) - {"format", "fingerprint"}:
        described = description(sound)
        del described[key]
        copy = Path(shutil.copy(sound, sound.with_name("copy.pack")))
        with pytest.raises(ModelError, match=r"copy\.pack"):
            add(forge(copy, described), base_folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-2, 70000) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


def places(data, way=()):
    """Every entry of a JSON object, as the keys that lead to it."""
    if way:
        yield way
    for key in range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ():
        yield from places(data[key], (*way, key))


def mutate(described, draw):
    *way, last = draw(st.sampled_from(list(places(described))))
    inner = described
    for key in way:
        inner = inner[key]
    if draw(st.integers(0, 4)) == 0:
        del inner[last]
    else:
        inner[last] = draw(JSON)


@given(data=st.data())
@settings(max_examples=150, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_mutated_a_pack_is_refused_or_it_runs(data, sound, base_folder):
    described = description(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(described, data.draw)
    forged = forge(Path(shutil.copy(sound, sound.with_name("forged.pack"))), described)
    try:
        model = add(forged, base_folder)
    except ModelError:
        return
    (name,) = set(model.pack_names) - {"totalseg"}
    pack = model.pack(name)
    profile = PackDecoder.of_pack(pack, pack.organs, torch.device("cpu")).profile
    assert all(share >= 0 for share in (*profile.shares, *profile.relative_coverage))
    assert parts_of(pack).isprintable()
    model.remove(name)


@given(data=st.data())
@settings(max_examples=100, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_bytes_of_the_header_change_a_pack_is_refused_or_read(data, sound):
    content = bytearray(sound.read_bytes())
    size = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    changed = sound.with_name("changed.pack")
    changed.write_bytes(content)
    with suppress(ModelError):
        OrganPack.read(changed)


@pytest.mark.parametrize("size", [2**63, 2**40, 17 * 2**20])
def test_a_header_that_claims_a_huge_size_is_refused(size, sound):
    sound.write_bytes(size.to_bytes(8, "little") + sound.read_bytes()[8:])
    with pytest.raises(ModelError, match=rf"sound\.pack.*{size}"):
        OrganPack.read(sound)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "null", "7", '"pack"', "[]"])
def test_a_header_that_holds_no_description_is_refused(text, sound):
    sound.write_bytes(save(load_file(sound), {"pack": text}))
    with pytest.raises(ModelError, match=r"sound\.pack: this is no organ pack"):
        OrganPack.read(sound)


# ---- weights

FIRST = "decoder.seg_layers.0.weight"


BAD_TENSORS = {
    "missing": lambda tensors: tensors.pop(FIRST),
    "one more": lambda tensors: tensors.update({"decoder.extra": torch.zeros(1)}),
    "a strange one": lambda tensors: tensors.update({"seg_layers.0.weight": torch.zeros(1)}),
    "another shape": lambda tensors: tensors.update({FIRST: torch.zeros(3, 6, 1, 1, 2)}),
    "another type": lambda tensors: tensors.update({FIRST: tensors[FIRST].double()}),
    "NaN": lambda tensors: tensors.update({FIRST: tensors[FIRST] * torch.nan}),
    "infinite": lambda tensors: tensors.update({FIRST: tensors[FIRST] + torch.inf}),
    "beyond float32": lambda tensors: tensors.update({k: t * 1e30 for k, t in tensors.items() if "seg" in k}),
    "other weights": lambda tensors: tensors.update({k: t * 2 for k, t in tensors.items() if "seg" in k}),
    "no probe": lambda tensors: tensors.pop("probe"),
    "a short probe": lambda tensors: tensors.update(probe=tensors["probe"][:, :-1].contiguous()),
}  # fmt: skip


@pytest.mark.parametrize("change", BAD_TENSORS.values(), ids=BAD_TENSORS.keys())
def test_weights_that_cannot_run_or_answer_otherwise_are_refused(change, sound, base_folder, contents):
    tensors, before = load_file(sound), contents(base_folder)
    change(tensors)
    with pytest.raises(ModelError):
        add(forge(sound, description(sound), tensors), base_folder)
    assert contents(base_folder) == before


def test_a_pack_of_another_environment_may_differ_by_rounding_and_no_more(sound, base_folder):
    described, tensors = description(sound), load_file(sound)
    described |= {"probe_sha256": "0" * 64, "probe_environment": "torch 1\x1b[2J, another processor"}
    nearly = tensors | {"probe": tensors["probe"] + 1e-5}
    add(forge(sound, described, nearly), base_folder).remove("sound")
    with pytest.raises(ModelError, match="differ"):
        add(forge(sound, described, tensors | {"probe": tensors["probe"] + 0.1}), base_folder)


# ---- where results go


def test_organs_of_a_stranger_are_never_written_outside_the_output_folder(
    sound, base_folder, scan_path, tmp_path
):
    described = description(sound)
    described["organs"][0]["name"] = "../../../escaped"
    forge(sound, described)
    shutil.copy(sound, base_folder / "packs" / "sound.pack")  # a whole model of a stranger: never added
    listed = json.loads((base_folder / "model.json").read_text())
    listed["files"]["packs/sound.pack"] = "0" * 64
    (base_folder / "model.json").write_text(json.dumps(listed))
    out = tmp_path / "a" / "b" / "out"
    assert main(["segment", str(scan_path), "-m", str(base_folder), "-o", str(out), "-ot", "organs"]) == 2
    assert not list(tmp_path.rglob("*escaped*"))


def test_free_texts_are_shown_without_control_characters(sound, base_folder, capsys):
    described = description(sound)
    described["licence"] = "\x1b[2J\x1b]0;owned\x07\u202e"
    described["anomalies"] = ["\x1b[31mtumour"]
    described["card"]["note"] = "\x9b31m"
    described["probe_environment"] = "torch\x1b[2J"
    described["probe_sha256"] = "0" * 64
    add(forge(sound, described), base_folder)
    for words in (f"pack list -m {base_folder}", f"pack info {sound}", f"verify {base_folder}"):
        assert main(words.split()) == 0
        shown = capsys.readouterr().out
        assert all(line.isprintable() for line in shown.splitlines())
