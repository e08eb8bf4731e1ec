"""HTTP towards a DICOMweb service: one connection per request, limited in time and size.

In:  method, target below the root of the service, what is accepted, perhaps an upload
Out: an Answer of status 200 to 299 whose body is read piece by piece, or a WebError
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path

from continual_segment.errors import ContinualSegmentError
from continual_segment.names import printable
from continual_segment.node.dicomweb.address import WebAddress
from continual_segment.node.dicomweb.credentials import Credentials

SILENCE_SECONDS = 60.0
"""Without a byte for so long, a connection is given up."""
LOOK_SECONDS = 0.5
"""How often a request that waits looks whether it is stopped."""
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed."""


class WebError(ContinualSegmentError):
    """A service that did not do what it was asked to."""

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class StoppedError(ContinualSegmentError):
    """A request that was given up because its answer is no longer wanted."""


class LocalError(ContinualSegmentError):
    """A file of this machine that cannot be read or written: asking the service again does not help."""


@dataclass(frozen=True)
class Upload:
    """A body of known length."""

    content_type: str
    length: int
    pieces: Iterator[bytes]


@dataclass(frozen=True)
class Request:
    """What is asked, and how long and large the answer may be."""

    method: str
    target: str
    """Below the root of the service."""
    accept: str
    most_mb: float
    seconds: float
    upload: Upload | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """Set by another thread, it ends the request with a StoppedError."""


@dataclass
class Answer:
    """An answer whose body may be as long as `most_bytes`."""

    service: WebAddress
    status: int
    content_type: Message
    """Parsed: get_content_type(), get_param("boundary")."""
    body: http.client.HTTPResponse
    most_bytes: int
    started: float
    """By the monotonic clock."""
    stop: threading.Event
    _read: int = field(default=0)

    def read(self, count: int) -> bytes:
        """At most so many bytes; none at the end."""
        with network_errors(self.service, self.started):
            piece = self.body.read1(count)
        check_wanted(self.service, self.stop)
        self._read += len(piece)
        if self._read > self.most_bytes:
            raise WebError(f"{self.service}: the answer has more than the {self.most_bytes} bytes allowed.")
        return piece

    def read_all(self) -> bytes:
        pieces = []
        while piece := self.read(2**16):
            pieces.append(piece)
        return b"".join(pieces)


@dataclass(frozen=True)
class WebService:
    """A DICOMweb service and how it is reached."""

    address: WebAddress
    credentials: Credentials | None = None
    context: ssl.SSLContext | None = None
    """Of TLS; None: the certificates that this machine trusts, or those of SSL_CERT_FILE."""

    @contextmanager
    def ask(self, request: Request) -> Iterator[Answer]:
        """The answer to a request; the connection ends with the block, or when its time is over."""
        check_wanted(self.address, request.stop)
        connection = self._connection()
        started = time.monotonic()
        try:
            with network_errors(self.address, started):
                connection.connect()
            with _hung_up_in_time(request, connection.sock):
                with network_errors(self.address, started):
                    answer = self._answer(connection, request, started)
                yield answer
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        where = self.address
        if not where.secure:
            return http.client.HTTPConnection(where.host, where.port, timeout=SILENCE_SECONDS)
        context = self.context or ssl.create_default_context()
        return http.client.HTTPSConnection(where.host, where.port, timeout=SILENCE_SECONDS, context=context)

    def _answer(self, connection: http.client.HTTPConnection, request: Request, started: float) -> Answer:
        headers = {"Accept": request.accept, "Accept-Encoding": "identity", "User-Agent": "continual-segment"}
        if self.credentials:
            headers["Authorization"] = self.credentials.header
        upload = request.upload
        if upload:
            headers |= {"Content-Type": upload.content_type, "Content-Length": str(upload.length)}
        body = upload.pieces if upload else None
        connection.request(request.method, self.address.path + request.target, body, headers)
        response = connection.getresponse()
        kind = Message()
        kind["Content-Type"] = response.headers.get("Content-Type", "")
        self._check(response)
        most_bytes = int(request.most_mb * 2**20)
        return Answer(self.address, response.status, kind, response, most_bytes, started, request.stop)

    def _check(self, response: http.client.HTTPResponse) -> None:
        status = response.status
        if status in (401, 403):
            found = "were" if self.credentials else "are needed, but none were given: they were"
            raise WebError(f"{self.address}: credentials {found} refused ({status}). See docs/dicomweb.md.")
        if 300 <= status < 400:
            raise WebError(f"{self.address}: redirects elsewhere ({status}). Use the other address.")
        if status != 409 and not 200 <= status < 300:  # 409 of STOW has the reason in its body
            reason = printable(response.reason, 80)
            raise WebError(f"{self.address}: answered {status} {reason}.", transient=status in TRANSIENT)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise WebError(f"{self.address}: the answer is encoded as {printable(encoding, 40)}, unasked.")


@contextmanager
def network_errors(service: WebAddress, started: float) -> Iterator[None]:
    """Turn errors of a connection into WebErrors; only around what uses the connection."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        problem = f"its certificate is not trusted ({error.verify_message})"
        raise WebError(f"{service}: {problem}. SSL_CERT_FILE can name others to trust.") from error
    except (OSError, http.client.HTTPException) as error:
        problem = printable(str(error) or type(error).__name__, 120)
        after = f"after {time.monotonic() - started:.0f} s"
        raise WebError(f"{service}: no complete answer {after} ({problem}).", True) from error


@contextmanager
def local_errors(path: Path, what: str) -> Iterator[None]:
    """Turn errors of a file of this machine into LocalErrors; `what` is read or written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise LocalError(f"{path}: cannot be {what} ({reason}). Check space and permissions.") from error


def check_wanted(service: WebAddress, stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError(f"{service}: the request was stopped.")


@contextmanager
def _hung_up_in_time(request: Request, connected: socket.socket) -> Iterator[None]:
    """Wakes whoever reads from a socket for too long, or after a stop; `http.client` may have forgotten it
    by then."""
    ended = threading.Event()

    def watch() -> None:
        end = time.monotonic() + request.seconds
        while not request.stop.is_set() and (left := end - time.monotonic()) > 0:
            if ended.wait(min(LOOK_SECONDS, left)):
                return
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
