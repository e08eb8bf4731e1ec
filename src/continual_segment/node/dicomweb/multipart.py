"""multipart/related as DICOMweb uses it: a body of many DICOM files, read and written piece by piece.

The body is input from outside: preamble and headers of parts are limited, a body that ends before its closing
delimiter is an error, and a part is written as it comes, so that memory does not grow with it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path

from continual_segment.node.dicomweb.http import Upload, local_errors

BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,199}[0-9A-Za-z'()+_,./:=?-]")
"""RFC 2046 allows 70 characters; archives use more."""
MOST_HEADER_BYTES = 16 * 1024
PIECE_BYTES = 2**18
DICOM = "application/dicom"


class MultipartError(Exception):
    """A body that is not what it claims to be."""

    def __init__(self, message: str, cut_short: bool = False) -> None:
        super().__init__(message)
        self.cut_short = cut_short


def boundary_of(content_type: Message, expected: str = DICOM) -> bytes:
    """The delimiter of a multipart/related body with parts of the expected type."""
    kind, boundary = content_type.get_content_type(), content_type.get_param("boundary")
    of = content_type.get_param("type", expected)
    if kind != "multipart/related" or not isinstance(of, str) or of.lower() != expected:
        raise MultipartError(f"the answer is no multipart/related of {expected}")
    if not isinstance(boundary, str) or not BOUNDARY.fullmatch(boundary):
        raise MultipartError("the answer has no usable boundary between its parts")
    return boundary.encode()


class MultipartReader:
    """Reads part after part: `next_part`, then `copy` its content."""

    def __init__(self, read: Callable[[int], bytes], boundary: bytes) -> None:
        self._read = read
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # as if a line had ended: the first delimiter may start the body
        self._started = False

    def next_part(self) -> Message | None:
        """Headers of the next part; None after the last."""
        if not self._started:
            self._started = True
            self._until(self._delimiter)
        while len(self._buffer) < 2:
            self._fill()
        if self._buffer[:2] == b"--":
            return None
        if self._until(b"\r\n").strip(b" \t"):
            raise MultipartError("a delimiter is followed by other characters")
        self._buffer[:0] = b"\r\n"  # a part without headers begins with an empty line
        return BytesHeaderParser().parsebytes(self._until(b"\r\n\r\n").removeprefix(b"\r\n"))

    def copy(self, write: Callable[[bytes], object]) -> None:
        """Write the content of a part, to the next delimiter."""
        while (end := self._buffer.find(self._delimiter)) < 0:
            keep = len(self._delimiter) - 1  # the delimiter may have begun
            if len(self._buffer) > keep:
                write(bytes(self._buffer[:-keep]))
                del self._buffer[:-keep]
            self._fill()
        write(bytes(self._buffer[:end]))
        del self._buffer[: end + len(self._delimiter)]

    def _until(self, mark: bytes) -> bytes:
        """Take what is before a mark, and the mark."""
        while (end := self._buffer.find(mark)) < 0 and len(self._buffer) <= MOST_HEADER_BYTES:
            self._fill()
        if not 0 <= end <= MOST_HEADER_BYTES:  # however much of it has arrived at once
            raise MultipartError("the headers of a part are too long")
        taken = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return taken

    def _fill(self) -> None:
        piece = self._read(PIECE_BYTES)
        if not piece:
            raise MultipartError("the answer ends before its last delimiter", cut_short=True)
        self._buffer += piece


def upload_of(path: Path) -> Upload:
    """One DICOM file as the body of STOW-RS."""
    boundary = secrets.token_hex(16)
    before = f"--{boundary}\r\nContent-Type: {DICOM}\r\n\r\n".encode()
    after = f"\r\n--{boundary}--\r\n".encode()
    length = len(before) + path.stat().st_size + len(after)

    def pieces() -> Iterator[bytes]:
        yield before
        with local_errors(path, "read"), path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
        yield after

    return Upload(f'multipart/related; type="{DICOM}"; boundary={boundary}', length, pieces())
