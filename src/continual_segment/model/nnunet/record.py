"""NnunetRecord: `nnunet.json` of an imported model, the content of nnU-Net's own files.

Nothing in it is needed to segment; `export` writes a model folder of nnU-Net from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from continual_segment.errors import ModelError
from continual_segment.files.records import parse_json
from continual_segment.model.model import RESTORE, Model, sha256

NAME = "nnunet.json"


@dataclass(frozen=True)
class NnunetRecord:
    """The files of an nnU-Net model beside its weights."""

    plans: dict[str, Any]
    """plans.json, as it was."""
    dataset: dict[str, Any]
    """dataset.json, as it was."""
    configuration: str
    trainer: str
    fold: str
    mirror_axes: tuple[int, ...]

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def of_model(cls, model: Model) -> NnunetRecord | None:
        """The record of an imported model; None where the model was not imported."""
        if NAME not in model.files:
            return None
        path = model.folder / NAME
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}. {RESTORE}") from error
        if sha256(content) != model.files[NAME]:
            raise ModelError(f"{path}: this is not the file the model was made with. {RESTORE}")
        return parse_json(content.decode("utf-8", "replace"), cls, str(path), ModelError, RESTORE)
