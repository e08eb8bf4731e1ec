"""Write a file so that it is there whole or not at all.

A reader, a crash or a full disk never meets a half-written file: everything goes to a hidden neighbour first,
is forced to the disk, and takes its name in one step.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

UNFINISHED = ".unfinished-"
"""What the names of files and folders begin with until they are whole."""
STAGES, FILES = ".unfinished", "files"
"""OUT/.unfinished/STAGE/files/..., with the lock of its process beside the files."""
SECONDS_KEPT = 24 * 3600
"""For which a stage of another machine is left alone: not every file system shows its lock here."""


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
    _remove_abandoned(folder)
    try:
        with _own_stage(folder) as stage:
            yield stage
            _move_in(stage, folder, Path(last), outdated)
            for each in new:
                _force_to_disk(each.parent)
    finally:
        for each in new:  # made for this, and given up where nothing came of it
            with suppress(OSError):
                each.rmdir()


@contextmanager
def _own_stage(folder: Path) -> Iterator[Path]:
    """A new stage of this process, which holds its lock until the block ends."""
    stage, lock = _new_stage(folder)
    try:
        (stage / FILES).mkdir()
        yield stage / FILES
    finally:
        _remove(stage / FILES)
        lock.release()  # before the lock is removed, which Windows requires
        shutil.rmtree(stage, ignore_errors=True)
        with suppress(OSError):  # another process has a stage
            stage.parent.rmdir()


def _new_stage(folder: Path) -> tuple[Path, FileLock]:
    """A stage and its lock, which is held unless the file system has no locks."""
    while True:  # before it is locked, another process may take a stage for abandoned: then there is another
        stage = folder / STAGES / secrets.token_hex(4)
        lock = _lock_of(stage)
        with suppress(FileNotFoundError, Timeout):
            stage.mkdir(parents=True)
            _take(lock)
            if stage.is_dir():
                return stage, lock
            lock.release()


def _lock_of(stage: Path) -> FileLock:
    """Named after this machine."""
    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:16]
    return FileLock(stage / f"lock-{machine}", timeout=0)


def _take(lock: FileLock) -> bool:
    """Take a lock; False where the file system has none, Timeout where another process holds it."""
    try:
        lock.acquire()
    except (FileNotFoundError, Timeout):
        raise
    except (NotImplementedError, OSError):
        return False
    return True


def _remove_abandoned(folder: Path) -> None:
    """Remove the stages of processes that were killed: results of patients, which nobody sees."""
    stages = folder / STAGES
    if stages.is_symlink():  # of a stranger, it may lead anywhere
        return
    for stage in stages.glob("[0-9a-f]" * 8):
        with suppress(OSError):  # its process lives, or another one removes it
            _remove_if_abandoned(stage)
    with suppress(OSError):
        stages.rmdir()


def _remove_if_abandoned(stage: Path) -> None:
    lock = _lock_of(stage)
    is_free = Path(lock.lock_file).exists() and _take(lock)
    if is_free or time.time() - stage.stat().st_mtime > SECONDS_KEPT:
        shutil.rmtree(stage, ignore_errors=True)
        lock.release()
        shutil.rmtree(
            stage, ignore_errors=True
        )  # the lock itself, where it cannot be removed while it is held


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
