"""Where the files of an nnU-Net model come from: a folder, or a zip of `nnUNetv2_export_model_to_zip`.

Only plans.json, dataset.json and checkpoints are looked at; nothing else is read or unpacked. A checkpoint in
a zip is unpacked to a temporary folder of its own, which is deleted when it has been read.

In:  a path
Out: names of files with '/' between folders, their texts, and checkpoints as files on disk
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from continual_segment.errors import ModelError
from continual_segment.model.nnunet.archives import find_member, open_zip
from continual_segment.names import printable

PLANS, DATASET = "plans.json", "dataset.json"
LONGEST_PATH = 1000
"""Letters that errors and reports show."""
LARGEST_TEXT = 64 << 20
LARGEST_CHECKPOINT = 16 << 30
"""Bytes; nnU-Net's largest network, ResEnc-XL, has checkpoints of 3 GB."""

WANTED = re.compile(r"(.*/)?(plans\.json|dataset\.json|fold_[^/]+/checkpoint_[^/]+\.pth)")
DEPTHS = ("", "*/", "*/*/")
"""Where a model may be in the folder given: itself, below a dataset, below nnUNet_results."""


class ModelFiles(Protocol):
    """Files of one or several models."""

    @property
    def root(self) -> Path: ...

    @property
    def names(self) -> tuple[str, ...]:
        """The plans, dataset descriptions and checkpoints there are."""

    def where(self, name: str) -> str:
        """A file as errors and reports show it."""

    def read_bytes(self, name: str) -> bytes: ...

    def on_disk(self, name: str) -> AbstractContextManager[Path]:
        """A path to read the file from while the block runs."""


def open_files(path: Path) -> ModelFiles:
    """The files of a model folder, a folder of several, or an exported zip."""
    if path.is_dir():
        return FolderFiles(path)
    if path.is_file():
        return ZipFiles(path)
    raise ModelError(f"{path} does not exist. Give an nnU-Net model folder, or an exported zip.")


def read_text(files: ModelFiles, name: str) -> str:
    """A JSON file of the model as text."""
    if name not in files.names:
        raise ModelError(
            f"{files.where(name)} is missing. An nnU-Net model folder has {PLANS}, {DATASET} and "
            "fold_X/checkpoint_final.pth: copy the whole folder."
        )
    try:
        return files.read_bytes(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{files.where(name)}: not a text file ({error.reason}). Copy the model again."
        ) from error


@dataclass(frozen=True)
class FolderFiles:
    """Files at or below a folder."""

    root: Path

    @cached_property
    def names(self) -> tuple[str, ...]:
        patterns = (PLANS, DATASET, "fold_*/checkpoint_*.pth")
        found = {file for depth in DEPTHS for each in patterns for file in self.root.glob(depth + each)}
        return tuple(sorted(file.relative_to(self.root).as_posix() for file in found if file.is_file()))

    def where(self, name: str) -> str:
        return printable(str(self.root / name), LONGEST_PATH)

    def read_bytes(self, name: str) -> bytes:
        try:
            size = (self.root / name).stat().st_size
            content = (self.root / name).read_bytes() if size <= LARGEST_TEXT else b""
        except OSError as error:
            raise ModelError(f"{self.where(name)}: {error.strerror}. Make it readable.") from error
        if size > LARGEST_TEXT:
            raise ModelError(
                f"{self.where(name)}: {size:,} bytes, at most {LARGEST_TEXT:,} were expected. "
                "Copy the model again."
            )
        return content

    @contextmanager
    def on_disk(self, name: str) -> Iterator[Path]:
        yield self.root / name


@dataclass(frozen=True)
class ZipFiles:
    """Files in a zip, which may have folders of its own above the model's."""

    root: Path

    @cached_property
    def names(self) -> tuple[str, ...]:
        with open_zip(self.root, self.where("")) as archive:
            return tuple(sorted(name for name in set(archive.namelist()) if WANTED.fullmatch(name)))

    def where(self, name: str) -> str:
        return printable(f"{self.root}:{name}" if name else str(self.root), LONGEST_PATH)

    def read_bytes(self, name: str) -> bytes:
        with open_zip(self.root, self.where("")) as archive:
            return archive.read(find_member(archive, name, self.where(name), LARGEST_TEXT))

    @contextmanager
    def on_disk(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="conseg-import-") as folder:
            path = Path(folder) / "checkpoint.pth"  # a name of ours: the zip's may be '../../.bashrc'
            with open_zip(self.root, self.where("")) as archive:
                member = find_member(archive, name, self.where(name), LARGEST_CHECKPOINT)
                with archive.open(member) as packed, path.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
            yield path
