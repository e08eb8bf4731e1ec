"""Standard output and standard error that may go away while work is done.

`conseg segment ... | head`, a terminal that was closed or a log on a full disk must neither stop a night's
batch nor make a failed one look finished. Within `lasting_streams` a message that cannot be written is
dropped and the work runs on. Later messages, those of libraries and of new processes included, go to the
null device.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

READER_IS_GONE = (errno.EPIPE, errno.EIO)
"""A closed pipe, a closed terminal."""


class LastingStream:
    """A text stream whose `write` and `flush` do not fail."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: OSError | None = None
        """Why something that was written is lost, unless its reader has left, which needs no mention."""

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            if error.errno not in READER_IS_GONE:
                self.problem = self.problem or error
            self._send_to_null_device()

    def _send_to_null_device(self) -> None:
        """What is still in the stream's buffer goes there too, when it is flushed next."""
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            return
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


@contextmanager
def lasting_streams() -> Iterator[LastingStream]:
    """Make both streams lasting for a while; gives standard output, whose problem can be read."""
    open_missing_streams()
    before = sys.stdout, sys.stderr
    output, errors = (LastingStream(stream) for stream in before)
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, errors)
    try:
        yield output
    finally:
        output.flush()
        errors.flush()
        sys.stdout, sys.stderr = before


def open_missing_streams() -> None:
    """Open the null device for streams that were closed before the start, as by `2>&-`.

    Otherwise the next file to be opened takes the number of the closed one, and messages are written to it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
