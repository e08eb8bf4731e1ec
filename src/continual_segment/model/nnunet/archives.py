"""Zip files from outside, with bounds on what is unpacked.

An exported nnU-Net model is a zip, and so is every checkpoint in it. The directory of a zip is data of its
author: the number of entries, their sizes and how far they are compressed are checked before anything is
unpacked, and the names in it never become paths.

In:  a zip file
Out: its directory, its members, or a ModelError
"""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from continual_segment.errors import ModelError
from continual_segment.names import printable

MOST_ENTRIES = 100_000
"""A model exported with all its validation results has some thousands."""
MOST_COMPRESSION = 100
"""Unpacked bytes per packed byte: weights reach 1.2, pretty-printed JSON 30, a zip bomb 1000."""
UNCHECKED_BYTES = 1 << 20
"""Members up to this size may be compressed further: a short text of repeated words is no bomb."""

DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    ValueError,
    OSError,
)


@contextmanager
def open_zip(path: Path, where: str) -> Iterator[zipfile.ZipFile]:
    """The zip at `path`, called `where` in errors; what goes wrong while it is read becomes a ModelError."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_entries(archive, where)
            yield archive
    except DAMAGED as error:
        raise ModelError(
            f"{where}: cannot be unpacked ({printable(str(error))}). It is no zip file or a damaged one: "
            "copy or export it again."
        ) from error
    except RuntimeError as error:  # the only one zipfile has for this
        raise ModelError(f"{where}: the zip is encrypted. Unpack it first.") from error


def find_member(archive: zipfile.ZipFile, name: str, where: str, largest: int) -> zipfile.ZipInfo:
    """The one member of that name, if it unpacks to `largest` bytes at most."""
    found = [member for member in archive.infolist() if member.filename == name]
    if len(found) != 1:
        raise ModelError(
            f"{where}: the zip has {len(found)} files of this name, one was expected. Export it again."
        )
    (member,) = found
    if member.file_size > largest:
        raise ModelError(
            f"{where}: {member.file_size:,} bytes unpacked, at most {largest:,} were expected. "
            "Check where the zip comes from."
        )
    packed = max(member.compress_size, 1)
    if member.file_size > UNCHECKED_BYTES and member.file_size > MOST_COMPRESSION * packed:
        raise ModelError(
            f"{where}: {packed:,} bytes unpack to {member.file_size:,}, at most {MOST_COMPRESSION} times as "
            "many were expected. Check where the zip comes from."
        )
    return member


def _check_entries(archive: zipfile.ZipFile, where: str) -> None:
    count = len(archive.infolist())
    if count > MOST_ENTRIES:
        raise ModelError(
            f"{where}: the zip has {count:,} entries, at most {MOST_ENTRIES:,} were expected. "
            "Check where the zip comes from."
        )
