"""A checkpoint of nnU-Net, opened without running what it contains.

A checkpoint is a pickle, and a pickle can name any function to call. Three measures prevent that:

1. The names in it are listed before it is opened. Only those that a stock checkpoint needs may occur:
   tensors, ordered dicts, a device, and numpy's numbers in the training log.
2. `torch.load(weights_only=True)` opens it and calls nothing else. Numpy's names are bound to classes
   that discard their arguments, because the training log is not used.
3. Tensors are mapped, not read: one that claims to be larger than the file is an error, not an allocation.

In:  a checkpoint file
Out: its weights, still mapped, and how they were trained
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record
from continual_segment.model.nnunet.archives import find_member, open_zip
from continual_segment.names import printable

LARGEST_PICKLE = 256 << 20
"""Bytes without tensors; the log of 4000 epochs with 117 organs takes 22 MB."""
ALLOWED = re.compile(
    r"collections OrderedDict|_codecs encode|torch device|torch \w+Storage|torch\._utils _rebuild_tensor_v2"
    r"|numpy dtype|numpy\._?core\.multiarray scalar"  # numpy.core before numpy 2
)
ADVICE = "Copy the checkpoint again, or get it from where it was trained."


class Discarded:
    """What a number of numpy's in the training log becomes."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


# torch.load finds a class by its module and name
DISCARDED: list[Any] = [
    type(name, (Discarded,), {"__module__": module})
    for module, name in (
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.multiarray", "scalar"),
    )
]


@dataclass(frozen=True)
class InitArgs:
    """What the trainer was started with."""

    configuration: str
    plans: Any = None
    dataset_json: Any = None


@dataclass(frozen=True)
class TrainingRecord:
    """The entries of a checkpoint about its training."""

    trainer_name: str
    init_args: InitArgs
    current_epoch: int | None = None
    """Epochs done; None where it is not stored."""
    inference_allowed_mirroring_axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        axes = self.inference_allowed_mirroring_axes or ()
        if len(set(axes)) != len(axes) or not set(axes) <= {0, 1, 2}:
            raise ValueError(f"inference_allowed_mirroring_axes are some of 0, 1 and 2, not {axes}")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An opened checkpoint; its tensors are valid while the file exists."""

    training: TrainingRecord
    weights: dict[str, Tensor]
    unused: tuple[str, ...]
    """Entries that are not read, such as the optimizer's."""


def read_checkpoint(path: Path, where: str) -> Checkpoint:
    """Open the checkpoint at `path`, called `where` in errors."""
    _check_names(_read_pickle(path, where), where)
    content = _load(path, where)
    weights = content.get("network_weights") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in weights.items()
    ):
        raise ModelError(f"{where}: no checkpoint of nnU-Net v2, it has no network_weights. {ADVICE}")
    known = {field.name: content.pop(field.name) for field in fields(TrainingRecord) if field.name in content}
    training = as_record(known, TrainingRecord, where, ModelError, ADVICE)
    unused = sorted(key for key in content if isinstance(key, str) and key != "network_weights")
    return Checkpoint(training, weights, tuple(map(printable, unused)))


def _read_pickle(path: Path, where: str) -> bytes:
    """The pickle of a checkpoint, after a look at the zip around it."""
    with open_zip(path, where) as archive:
        members = archive.infolist()
        stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not stored or sum(member.file_size for member in members) > path.stat().st_size:
            raise ModelError(f"{where}: the tensors are packed or overlap, as PyTorch never writes. {ADVICE}")
        # one whatever its case: PyTorch looks names up without regard to it
        pickles = [member.filename for member in members if member.filename.lower().endswith("data.pkl")]
        if len(pickles) != 1:
            raise ModelError(f"{where}: no checkpoint of PyTorch, {len(pickles)} pickles in it. {ADVICE}")
        return archive.read(find_member(archive, pickles[0], where, LARGEST_PICKLE))


def _check_names(pickled: bytes, where: str) -> None:
    """Raise where the pickle names a class or function that no stock checkpoint needs."""
    try:
        # the newer opcodes for names are not listed: weights_only refuses them
        names = {str(value) for opcode, value, _ in pickletools.genops(pickled) if opcode.name == "GLOBAL"}
    except Exception as error:  # pickletools documents no set of errors for a torn pickle
        raise _damaged(where, error) from error
    others = sorted(name.replace(" ", ".") for name in names if not ALLOWED.fullmatch(name))
    if others:
        raise ModelError(
            f"{where}: the checkpoint wants to use {printable(', '.join(others))}, which could run code. "
            "Only tensors, numbers and texts are read, and a checkpoint of stock nnU-Net needs nothing else. "
            "Get the model from a source you trust, or save its checkpoint again without these objects."
        )


def _load(path: Path, where: str) -> Any:
    try:
        with torch.serialization.safe_globals(DISCARDED):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # bytes of a stranger make an unpickler raise nearly anything
        raise _damaged(where, error) from error


def _damaged(where: str, error: Exception) -> ModelError:
    # PyTorch's own message is left out: it recommends weights_only=False
    return ModelError(f"{where}: the checkpoint is damaged ({type(error).__name__}). {ADVICE}")
