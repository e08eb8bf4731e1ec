"""Exported zips: what is read of them, and what a hostile one cannot do."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest
from made_nnunet import FINAL, FOLDER, made_checkpoint, write_model, write_zip

from continual_segment.errors import ModelError
from continual_segment.model.nnunet import NnunetModel, archives, sources

INSIDE = f"Dataset007_Made/{FOLDER}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_model(tmp_path / FOLDER)
    (folder / "fold_0" / "progress.png").write_bytes(b"picture")
    (folder / "dataset_fingerprint.json").write_text("{}")
    return folder


@pytest.fixture
def exported(folder: Path, tmp_path: Path) -> Path:
    return write_zip(tmp_path / "model.zip", folder)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are made."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.mark.parametrize("above", ["Dataset007_Made/", "top folder/Dataset007_Made/", ""])
def test_an_exported_zip_is_the_same_model(above: str, folder: Path, tmp_path: Path, temporary: Path) -> None:
    path = write_zip(tmp_path / "model.zip", folder, above)
    ours, theirs = NnunetModel.open(path), NnunetModel.open(folder)
    assert ours.source == f"{path}:{above}{FOLDER}/"
    assert ours.architecture == theirs.architecture
    assert ours.preprocessing == theirs.preprocessing
    assert ours.labels == theirs.labels
    assert all(ours.weights[name].equal(tensor) for name, tensor in theirs.weights.items())
    assert list(temporary.iterdir()) == []


def test_a_zip_of_the_files_alone_is_a_model(folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.make_archive(str(tmp_path / "flat"), "zip", folder))
    assert NnunetModel.open(path).training.configuration == "3d_fullres"


def test_configurations_and_folds_in_a_zip_are_chosen(tmp_path: Path) -> None:
    root = tmp_path / "Dataset007_Made"
    write_model(root / FOLDER, files=(f"fold_0/{FINAL}", f"fold_1/{FINAL}"))
    two = made_checkpoint(init_args={"configuration": "2d"})
    write_model(root / "nnUNetTrainer__nnUNetPlans__2d", checkpoint=two)
    path = write_zip(tmp_path / "model.zip", root, above="")
    with pytest.raises(ModelError, match=r"model\.zip: 2 models.*__2d.*__3d_fullres"):
        NnunetModel.open(path)
    assert NnunetModel.open(path, "3d_fullres", fold=1).training.fold == "1"
    with pytest.raises(ModelError, match=r"model\.zip:.*2d"):
        NnunetModel.open(path, "2d")


def test_only_what_is_needed_is_read(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = zipfile.ZipFile.open

    def open_member(archive, name, *arguments, **options):  # type: ignore[no-untyped-def]
        read.append(getattr(name, "filename", name))
        return original(archive, name, *arguments, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", open_member)
    NnunetModel.open(exported)
    wanted = {f"{INSIDE}/{name}" for name in ("plans.json", "dataset.json", f"fold_0/{FINAL}")}
    assert {name for name in read if name.startswith("Dataset")} == wanted


def test_names_in_a_zip_never_become_paths(folder: Path, tmp_path: Path, temporary: Path) -> None:
    path = write_zip(tmp_path / "model.zip", folder, above="../../escaped/")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("/absolute.txt", "out")
        archive.writestr("../climbed.txt", "out")
    before = sorted(tmp_path.rglob("*"))
    assert NnunetModel.open(path).labels.names[0] == "Liver"
    assert sorted(tmp_path.rglob("*")) == before
    assert not (tmp_path.parents[1] / "escaped").exists()


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_torn_zip_is_refused(share: float, exported: Path, temporary: Path) -> None:
    content = exported.read_bytes()
    exported.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match=r"model\.zip"):
        NnunetModel.open(exported)
    assert list(temporary.iterdir()) == []


def test_damage_inside_a_zip_is_found(exported: Path, temporary: Path) -> None:
    with zipfile.ZipFile(exported) as archive:
        place = archive.getinfo(f"{INSIDE}/fold_0/{FINAL}").header_offset + 2000
    content = bytearray(exported.read_bytes())
    content[place : place + 50] = bytes(50)
    exported.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.zip"):
        NnunetModel.open(exported)
    assert list(temporary.iterdir()) == []


def test_a_zip_bomb_is_not_unpacked(exported: Path, folder: Path, tmp_path: Path, temporary: Path) -> None:
    (folder / "fold_0" / FINAL).write_bytes(bytes(5 << 20))
    path = write_zip(tmp_path / "bomb.zip", folder)
    with pytest.raises(ModelError, match=r"bomb\.zip.*5,242,880"):
        NnunetModel.open(path)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "limit", "found"),
    [
        (archives, "MOST_ENTRIES", "5 entries"),
        (sources, "LARGEST_TEXT", r"plans\.json"),
        (sources, "LARGEST_CHECKPOINT", FINAL),
    ],
)
def test_a_zip_beyond_a_limit_is_refused(
    module: object, limit: str, found: str, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, 3)
    with pytest.raises(ModelError, match=found):
        NnunetModel.open(exported)


def test_a_folder_with_a_huge_text_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGEST_TEXT", 3)
    with pytest.raises(ModelError, match=r"plans\.json"):
        NnunetModel.open(folder)


def test_two_files_of_one_name_are_refused(exported: Path) -> None:
    with zipfile.ZipFile(exported, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"{INSIDE}/plans.json", "{}")
    with pytest.raises(ModelError, match=r"plans\.json.*2 files"):
        NnunetModel.open(exported)


def test_an_encrypted_zip_is_refused(exported: Path) -> None:
    content = bytearray(exported.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(signature, place + 4)
    exported.write_bytes(content)
    with pytest.raises(ModelError, match="encrypted"):
        NnunetModel.open(exported)


def test_a_checkpoint_given_as_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="no nnU-Net model"):
        NnunetModel.open(folder / "fold_0" / FINAL)
