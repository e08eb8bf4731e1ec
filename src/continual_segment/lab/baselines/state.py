"""MethodState: tensors that a method carries from step to step, such as prototypes of old organs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from continual_segment.files.atomic import write_bytes

MethodState = Mapping[str, Tensor]


def state_file(folder: Path) -> Path:
    """Beside the model folder, which holds nothing but the model.

    The file has the name that earlier versions gave it, so that their benchmarks resume.
    """
    return folder.with_name(f"{folder.name}.memory.safetensors")


def write_state(folder: Path, state: MethodState) -> None:
    """Write what there is; no file for a method without state."""
    if state:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
        write_bytes(state_file(folder), save(tensors))


def read_state(folder: Path) -> MethodState:
    path = state_file(folder)
    return load_file(path) if path.exists() else {}
