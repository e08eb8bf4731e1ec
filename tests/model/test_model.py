"""The model folder: what it promises about its bytes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from continual_segment.data.intensity import Intensity
from continual_segment.errors import ModelError
from continual_segment.files import read_scan
from continual_segment.model import Model, OrganPack, verify
from continual_segment.model import model as module
from continual_segment.model.model import encoder_fingerprint
from continual_segment.networks import GeneralEncoder
from continual_segment.organs import find_organ
from continual_segment.segmentation import SegmentConfig, Segmenter


@pytest.fixture
def base(base_folder):
    return Model.open(base_folder)


@pytest.fixture
def foreign_pack(base, make_pack):
    return replace(make_pack("foreign"), encoder_fingerprint="f" * 64)


def segmentation(folder, scan_path):
    labels = Segmenter(Model.open(folder), config=SegmentConfig(progress=False))(read_scan(scan_path)).labels
    return labels.voxels


def test_a_model_is_read_as_it_was_made(base, preset):
    assert base.network == preset.network
    assert base.prepare == preset.prepare
    assert base.window == preset.patches.size
    assert base.pack_names == ("totalseg",)
    assert {"esophagus", "trachea"} <= base.organs.keys()
    assert encoder_fingerprint(base.load_encoder(), base.prepare) == base.encoder_fingerprint


def test_a_model_holds_safetensors_and_json_alone(shared_model_folder, contents):
    files = contents(shared_model_folder)
    assert set(files) == {
        "model.json",
        "encoder.safetensors",
        "body_parts.safetensors",
        "packs/totalseg.pack",
        "packs/chest.pack",
    }
    for name, content in files.items():
        if name != "model.json":
            json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def test_packs_install_in_either_order_with_the_same_bytes_and_segmentations(
    base_folder, make_pack, contents, tmp_path, scan_path
):
    packs = [make_pack("a", ["esophagus"], seed=1), make_pack("b", ["esophagus", "trachea"], seed=2)]
    folders = [Path(shutil.copytree(base_folder, tmp_path / name / "model")) for name in ("ab", "ba")]
    for folder, order in zip(folders, (packs, packs[::-1]), strict=True):
        for pack in order:
            Model.open(folder).add(pack)
    assert contents(folders[0]) == contents(folders[1])
    one, other = (segmentation(folder, scan_path) for folder in folders)
    assert (one == other).all()
    assert one.any()


def test_removing_a_pack_restores_every_byte_of_the_folder(base, make_pack, contents):
    before = contents(base.folder)
    base.add(make_pack("later"))
    assert contents(base.folder) != before
    base.remove("later")
    assert contents(base.folder) == before


def test_adding_a_pack_leaves_every_other_file_as_it_was(base, make_pack, contents):
    before = contents(base.folder)
    base.add(make_pack("later"))
    after = contents(base.folder)
    assert {name for name in after if after[name] != before.get(name)} == {"model.json", "packs/later.pack"}


def test_an_exported_pack_is_the_installed_file_and_can_be_added_elsewhere(
    base, make_pack, tmp_path, contents
):
    other = Path(shutil.copytree(base.folder, tmp_path / "other"))
    base.add(make_pack("later")).export("later", tmp_path / "shared.pack")
    assert (tmp_path / "shared.pack").read_bytes() == (base.folder / "packs/later.pack").read_bytes()
    Model.open(other).add(OrganPack.read(tmp_path / "shared.pack"))
    assert contents(other) == contents(base.folder)


def test_a_pack_of_another_encoder_is_refused(base, foreign_pack, contents):
    before = contents(base.folder)
    with pytest.raises(ModelError, match=r"'foreign' was trained on another encoder \(ffffffffffff\)"):
        base.add(foreign_pack)
    assert contents(base.folder) == before


def test_the_encoders_fingerprint_follows_weights_and_preparation(base):
    encoder = base.load_encoder()
    other = replace(base.prepare, spacing_mm=(1.0, 1.0, 1.0))
    assert encoder_fingerprint(encoder, other) != base.encoder_fingerprint
    for intensity in (Intensity.window(-400, 400), Intensity("z-score"), Intensity(padding="zero")):
        assert encoder_fingerprint(encoder, replace(other, intensity=intensity)) not in (
            base.encoder_fingerprint,
            encoder_fingerprint(encoder, other),
        )
    encoder.stages[0][0].convs[0].conv.bias[0] += 1
    assert encoder_fingerprint(encoder, base.prepare) != base.encoder_fingerprint


def test_a_name_that_is_taken_is_refused(base, make_pack, contents):
    before = contents(base.folder)
    with pytest.raises(ModelError, match=r"has a pack 'totalseg' already\. Nothing learned is overwritten"):
        base.add(make_pack("totalseg"))
    assert contents(base.folder) == before


def test_one_id_with_two_names_is_refused(base, make_pack):
    other = replace(find_organ("trachea"), name="windpipe")
    pack = replace(make_pack("later", ["trachea"]), organs=(other,))
    with pytest.raises(ModelError, match=rf"'windpipe' with id {other.id} is 'trachea'"):
        base.add(pack)
    assert Model.open(base.folder).pack_names == ("totalseg",)


def test_a_pack_that_is_not_there_cannot_be_removed(base):
    with pytest.raises(ModelError, match=r"has no pack 'liver'\. Its packs: totalseg\."):
        base.remove("liver")


def test_a_crash_before_the_description_leaves_the_old_model(base, make_pack, monkeypatch, contents):
    before = contents(base.folder)

    def crash(path, data):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_json", crash)
    with pytest.raises(KeyboardInterrupt):
        base.add(make_pack("later"))
    monkeypatch.undo()
    assert {name: contents(base.folder)[name] for name in before} == before
    assert Model.open(base.folder).pack_names == ("totalseg",)
    assert verify(base.folder).good
    assert base.add(make_pack("later")).pack_names == (
        "later",
        "totalseg",
    )  # and the next attempt goes through
    assert verify(base.folder).good


@pytest.mark.parametrize("moment", ["write_json", "atomic_path"])
def test_a_model_half_made_is_never_seen(moment, base, make_pack, tmp_path, monkeypatch):
    def crash(*arguments):
        raise KeyboardInterrupt

    place = tmp_path / "new"
    place.mkdir()
    pack, encoder = make_pack("first"), base.load_encoder()
    monkeypatch.setattr(module, moment, crash)
    with pytest.raises(KeyboardInterrupt):
        Model.create(place / "model", encoder, base.prepare, base.window, pack)
    assert list(place.iterdir()) == []
    monkeypatch.undo()
    made = Model.create(place / "model", encoder, base.prepare, base.window, pack)
    assert made.pack_names == ("first",)
    assert [path.name for path in place.iterdir()] == ["model"]


def test_a_model_is_never_made_over_another(base, make_pack):
    with pytest.raises(ModelError, match="exists already"):
        Model.create(base.folder, GeneralEncoder(base.network), base.prepare, base.window, make_pack("first"))


ADD = """
import sys
from continual_segment.model import Model, OrganPack
model, pack = Model.open(sys.argv[1]), OrganPack.read(sys.argv[2])
print("opened", flush=True)
model.add(pack)
"""


def test_packs_added_by_two_processes_at_once_both_land(base, make_pack, tmp_path, python):
    for seed, name in enumerate(("left", "right")):
        make_pack(name, seed=seed).write(tmp_path / f"{name}.pack")
    lock = FileLock(base.folder.with_name(f".{base.folder.name}.lock"))
    with lock:  # until both have opened the same model
        processes = [python("-c", ADD, base.folder, tmp_path / f"{name}.pack") for name in ("left", "right")]
        assert [process.stdout.readline() for process in processes] == ["opened\n"] * 2
    for process in processes:
        _, problems = process.communicate(timeout=300)
        assert process.returncode == 0, problems
    assert Model.open(base.folder).pack_names == ("left", "right", "totalseg")
    assert verify(base.folder).good


def test_a_locked_model_says_so(base, make_pack, monkeypatch):
    monkeypatch.setattr(module, "FileLock", lambda path, timeout: FileLock(path, timeout=0.05))
    with (
        FileLock(base.folder.with_name(f".{base.folder.name}.lock")),
        pytest.raises(ModelError, match="another process has been changing this model"),
    ):
        base.add(make_pack("later"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"format": 7}', r"a model of format 7; this version reads 1 and 2\. Update"),
        ('{"format": 1}', "is damaged"),
        ("{}", "is damaged"),
        ("[]", "is damaged"),
        ("{", "is damaged"),
        ("\udcff", "is damaged"),
    ],
)
def test_a_description_that_cannot_be_read_gets_a_sentence(text, sentence, base):
    (base.folder / "model.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ModelError, match=sentence):
        Model.open(base.folder)


def test_what_is_no_model_gets_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    for name, what in (
        ("gone", "does not exist"),
        (".", "is no model folder"),
        ("file", "is no model folder"),
    ):
        with pytest.raises(ModelError, match=f"{what}.*conseg learn"):
            Model.open(tmp_path / name)
