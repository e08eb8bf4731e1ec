"""Write a file so that it is there whole or not at all.

A reader, a crash or a full disk never meets a half-written file: everything goes to a hidden neighbour first,
is forced to the disk, and takes its name in one step.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished-"
"""What the names of files and folders begin with until they are whole."""


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A path to write to in place of `path`, which takes its name when the block ends without an error.

    The block may make a file or a folder there. Whatever goes wrong, what was at `path` before is still
    there and nothing else is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last, because libraries choose a format by it.
    unfinished = path.with_name(f"{UNFINISHED}{secrets.token_hex(4)}-{path.name}")
    try:
        yield unfinished
        _force_to_disk(unfinished)
        unfinished.replace(path)
        _force_to_disk(path.parent)
    finally:
        _remove(unfinished)


@contextmanager
def staged(folder: Path | str, last: Path | str, outdated: Collection[Path] = ()) -> Iterator[Path]:
    """A hidden folder whose files move to the same places in `folder` when the block ends without an error.

    For results of several files: whatever goes wrong while they are made, none of them is seen. They take
    their names one by one, so `last` is the file, by its path in the folder, whose presence shows that all
    others are there: an old one is removed before the first file moves, and the new one moves at the end.
    `outdated` are files of earlier results, by their paths in the folder: what is not made again is removed.
    """
    folder = Path(folder)
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    stage = folder / f"{UNFINISHED}{secrets.token_hex(4)}"
    try:
        stage.mkdir()
        yield stage
        _move_in(stage, folder, Path(last), outdated)
        for each in new:
            _force_to_disk(each.parent)
    finally:
        _remove(stage)
        for each in new:  # made for this, and given up where nothing came of it
            with suppress(OSError):
                each.rmdir()


def files_of_interrupted(folder: Path, last: Path) -> list[str]:
    """The old and new files among which a stage was killed while it moved; empty where none was."""
    try:
        found = json.loads((folder / _list_beside(last)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _list_beside(last: Path) -> Path:
    """Where the files are listed that may be there while `last` is not."""
    return last.with_name(f"{UNFINISHED}{last.stem}")


def _move_in(stage: Path, folder: Path, last: Path, outdated: Collection[Path]) -> None:
    """Each step is on the disk before the next: a power failure leaves no other state than a kill."""
    files = sorted(path.relative_to(stage) for path in stage.rglob("*") if path.is_file())
    for file in files:
        _force_to_disk(stage / file)
    write_json(folder / _list_beside(last), sorted(file.as_posix() for file in {*files, *outdated}))
    _remove_files([last], folder)
    _remove_files(sorted({*outdated} - {*files}), folder)
    _move([file for file in files if file != last], stage, folder)
    _move([file for file in files if file == last], stage, folder)
    _remove_files([_list_beside(last)], folder)


def _remove_files(files: Sequence[Path], folder: Path) -> None:
    there = [file for file in files if (folder / file).exists()]
    for file in there:
        (folder / file).unlink(missing_ok=True)
    for parent in {file.parent for file in there}:
        _force_to_disk(folder / parent)


def _move(files: Sequence[Path], stage: Path, folder: Path) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (stage / file).replace(folder / file)
    for parent in sorted({parent for file in files for parent in file.parents}, reverse=True):
        _force_to_disk(folder / parent)  # deepest first; the last is the folder itself


def make_folder(folder: Path) -> None:
    """Make a folder that is still there after a power failure."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _force_to_disk(folder.parent)


def write_bytes(path: Path | str, data: bytes) -> None:
    with atomic_path(path) as unfinished:
        unfinished.write_bytes(data)


def write_text(path: Path | str, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path | str, data: Any) -> None:
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def _force_to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows cannot open a folder
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
