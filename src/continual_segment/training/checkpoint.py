"""Checkpoints: where a stopped run resumes.

A checkpoint is replaced atomically, so the one on disk is always whole, and carries the signature of
the run it belongs to, so that a run with other settings never continues from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from continual_segment.errors import ContinualSegmentError
from continual_segment.files.atomic import atomic_path
from continual_segment.training.distributed import world_size


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a run's state; it holds at least the run's `signature` and the `iteration` it has done."""
    try:
        with atomic_path(path) as temporary:
            torch.save(state, temporary)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise ContinualSegmentError(
            f"{path}: the checkpoint after {state['iteration']} iterations could not be written ({error}). "
            "The one before is complete: free disk space and run the same command again to resume from it."
        ) from error


def load_checkpoint(path: Path, signature: str) -> dict[str, Any] | None:
    """The state to resume from; None where the run is new."""
    if not path.exists():
        return None
    state = torch.load(path, map_location="cpu", weights_only=True)  # weights_only: no pickled code runs
    if (processes := state.get("processes", 1)) != world_size():
        raise ContinualSegmentError(
            f"{path}: this checkpoint belongs to a run of {processes} processes, this one has {world_size()} "
            f"and other batches. Start it with {processes}, or delete {path.parent} to start anew."
        )
    if state["signature"] != signature:
        raise ContinualSegmentError(
            f"{path}: this checkpoint belongs to a run with other data or settings. Run the command it was "
            f"started with to finish it, or delete {path.parent} to start anew."
        )
    return state
