"""Checkpoints are pickles of strangers: opened without running anything, or refused."""

from __future__ import annotations

import os
import random
import re
import struct
import zipfile
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from made_nnunet import FINAL, change_pickle, made_checkpoint, made_state, write_model

from continual_segment.errors import ModelError
from continual_segment.model.nnunet import NnunetModel
from continual_segment.model.nnunet.checkpoint import read_checkpoint


class Calls:
    """Pickled as a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A stock checkpoint."""
    torch.save(made_checkpoint(), tmp_path / FINAL)
    return tmp_path / FINAL


def save(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def test_a_stock_checkpoint_is_read_and_leaves_no_trace_in_torch(path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    checkpoint = read_checkpoint(path, "here")
    assert set(torch.serialization.get_safe_globals()) == before
    assert checkpoint.training.trainer_name == "nnUNetTrainer"
    assert checkpoint.training.inference_allowed_mirroring_axes == (0, 1, 2)
    assert checkpoint.unused == ("_best_ema", "grad_scaler_state", "logging", "optimizer_state")
    assert checkpoint.weights.keys() == made_state().keys()


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_numbers_of_older_and_newer_numpy_are_read(module: bytes, path: Path) -> None:
    change_pickle(path, lambda pickled: re.sub(rb"numpy\._?core\.multiarray", module, pickled))
    assert read_checkpoint(path, "here").training.current_epoch == 1000


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_a_checkpoint_does_not_run(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for evil in (Calls(os.system, f"touch {marker}"), Calls(exec, f"open({str(marker)!r}, 'w')")):
        checkpoint = made_checkpoint(logging={"dice": [evil]})
        path = save(tmp_path / "evil.pth", checkpoint, pickle_protocol=protocol)
        with pytest.raises(ModelError, match="where it is"):
            read_checkpoint(path, "where it is")
        assert not marker.exists()
    torch.load(path, weights_only=False)  # the same file is harmful to others
    assert marker.exists()


@pytest.mark.parametrize(
    ("evil", "name"),
    [
        (Calls(os.system, "true"), f"{os.system.__module__}.system"),
        (Calls(eval, "1"), "eval"),
        (Calls(bytearray, 10**15), "bytearray"),  # torch calls this one: 1000 TB of memory
        (Calls(torch.FloatTensor, 10**12), "torch.FloatTensor"),
        (torch.nn.Conv3d(1, 1, 1), "torch.nn.modules.conv.Conv3d"),
        (Path("/"), "Path"),
    ],
)
def test_what_a_checkpoint_wants_beyond_a_stock_one_is_named(evil: Any, name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "evil.pth", made_checkpoint(logging=evil))
    with pytest.raises(ModelError, match=name):
        read_checkpoint(path, "here")


def test_a_whole_network_in_place_of_its_weights_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "network.pth", torch.nn.Conv3d(1, 1, 1))
    with pytest.raises(ModelError, match="Conv3d"):
        read_checkpoint(path, "here")


@pytest.mark.parametrize(
    "content", [{"a": torch.ones(3)}, [1, 2], {"network_weights": [1]}, {"network_weights": {"a": 1}}]
)
def test_what_is_no_nnunet_checkpoint_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="network_weights"):
        read_checkpoint(save(tmp_path / "other.pth", content), "here")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trainer_name": 3}, "trainer_name"),
        ({"init_args": {"fold": 0}}, "configuration"),
        ({"init_args": None}, "init_args"),
        ({"current_epoch": "many"}, "current_epoch"),
        ({"inference_allowed_mirroring_axes": (0, 3)}, "mirroring_axes"),
        ({"inference_allowed_mirroring_axes": (1, 1)}, "mirroring_axes"),
    ],
)
def test_a_wrong_entry_is_named(changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=field):
        read_checkpoint(save(tmp_path / "wrong.pth", made_checkpoint(**changes)), "here")


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_torn_checkpoint_is_refused(share: float, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match="here"):
        read_checkpoint(path, "here")


def test_a_checkpoint_of_the_time_before_zips_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "old.pth", made_checkpoint(), _use_new_zipfile_serialization=False)
    with pytest.raises(ModelError, match="here"):
        read_checkpoint(path, "here")


@pytest.mark.parametrize("what", ["storage", "shape", "both"])
def test_a_tensor_that_claims_to_be_huge_allocates_nothing(what: str, tmp_path: Path) -> None:
    odd = 12345  # twice in the pickle: the length of the storage, then that of the tensor
    state = made_state() | {"encoder.stages.0.0.convs.0.conv.bias": torch.zeros(odd)}
    folder = write_model(tmp_path / "model", checkpoint=made_checkpoint(state))

    def enlarge(pickled: bytes) -> bytes:
        number, huge = b"M" + struct.pack("<H", odd), b"J" + struct.pack("<i", 2_000_000_000)
        before, between, after = pickled.split(number)
        storage, shape = what != "shape", what != "storage"
        return before + (huge if storage else number) + between + (huge if shape else number) + after

    change_pickle(folder / "fold_0" / FINAL, enlarge)
    with pytest.raises(ModelError, match=FINAL):
        NnunetModel.open(folder)


def test_a_huge_view_of_one_number_allocates_nothing(tmp_path: Path) -> None:
    state = made_state() | {"encoder.stages.0.0.convs.0.conv.bias": torch.zeros(1).expand(10**6, 10**7)}
    checkpoint = made_checkpoint(state)
    with pytest.raises(ModelError, match=r"\(1000000, 10000000\)"):
        NnunetModel.open(write_model(tmp_path / "model", checkpoint=checkpoint))


@pytest.mark.parametrize("level", [0, 9])
def test_packed_tensors_are_refused(level: int, path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ModelError, match="packed"):
        read_checkpoint(path, "here")


def test_tensors_that_overlap_in_the_file_are_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        tensor = max(archive.infolist(), key=lambda member: member.file_size)
        archive.filelist += [copy(tensor) for _ in range(1000)]
        archive.comment = b"changed"  # the directory is written only after a change
    with pytest.raises(ModelError, match="overlap"):
        read_checkpoint(path, "here")


def test_a_second_pickle_is_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/DATA.PKL", b"harmful")
    with pytest.raises(ModelError, match="2 pickles"):
        read_checkpoint(path, "here")


def test_whatever_a_pickle_holds_it_is_read_or_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "small.pth", made_checkpoint({"a": torch.ones(3)}))
    content = path.read_bytes()
    chance = random.Random(0)

    def damage(pickled: bytes) -> bytes:
        changed = bytearray(pickled)
        for _ in range(chance.choice((1, 3, 10))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)

    for _ in range(150):
        path.write_bytes(content)
        change_pickle(path, damage)
        with suppress(ModelError):
            read_checkpoint(path, "here")
