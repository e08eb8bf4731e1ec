"""A web server for one person on one machine.

It answers this machine alone, and there only requests that carry a random token in the path and name this
server as their host. What can be requested is a table that exists before the first request: the path of a
request is a key of it or an error, and never becomes a path on the disk. Nothing can be changed through it.
The number of connections is bounded, and a connection that is refused is closed.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Any

from continual_segment.errors import ConfigError, ContinualSegmentError
from continual_segment.names import printable

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
LONGEST_ERROR = 600
MOST_CONNECTIONS = 64
"""At a time; a browser opens six. Each has a thread of its own."""
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",  # fonts and textures that NiiVue carries in itself
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Resource:
    """Something that the page may request."""

    media_type: str
    make: Callable[[], bytes]
    """The content, computed when it is requested."""


def json_resource(make: Callable[[], Any]) -> Resource:
    """A resource of plain data."""
    return Resource("application/json", lambda: json.dumps(make(), allow_nan=False).encode())


@dataclass(frozen=True)
class Site:
    """The table of all that can be requested, and the token that requests must carry."""

    resources: Mapping[str, Resource]
    """By route, such as `cases/0/scan.nii`."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def find(self, path: str) -> Resource | None:
        """The resource of a request's path, `/TOKEN/ROUTE`; None where token or route is another."""
        start = f"/{self.token}/"
        known = hmac.compare_digest(path[: len(start)].encode(), start.encode())
        return self.resources.get(path[len(start) :]) if known else None


class ViewerServer(ThreadingHTTPServer):
    """Serves one site on a port of the loopback device."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0) -> None:
        """Port 0 takes any free one."""
        self.site = site
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Port {port} of {ADDRESS} cannot be used ({error}). Leave --port out to take a free one."
            ) from error
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; a connection too many is closed at once."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed while it is answered is no error; others are shown as usual."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{ADDRESS}:{self.server_port}/{self.site.token}/"


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: ViewerServer
    server_version, sys_version = "conseg", ""
    protocol_version = default_request_version = "HTTP/1.1"  # answers to HTTP/0.9 would have no headers
    timeout = 60  # seconds: a silent connection does not keep its thread

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        if self._has_body():
            return self._refuse(HTTPStatus.BAD_REQUEST, with_body)
        if not self._is_own_page():
            return self._refuse(HTTPStatus.FORBIDDEN, with_body)
        resource = self.server.site.find(self.path)
        if resource is None:
            return self._refuse(HTTPStatus.NOT_FOUND, with_body)
        try:
            content = resource.make()
        except (
            ContinualSegmentError,
            ArithmeticError,
            MemoryError,
            OSError,
            ValueError,
        ) as error:  # ValueError: NaN in a file
            content = json.dumps({"error": printable(str(error), LONGEST_ERROR)}).encode()
            return self._send(HTTPStatus.UNPROCESSABLE_ENTITY, "application/json", content, with_body)
        return self._send(HTTPStatus.OK, resource.media_type, content, with_body)

    def _has_body(self) -> bool:
        """Nothing is read from a client; what follows its headers would count as its next request."""
        return self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers

    def _is_own_page(self) -> bool:
        """A page of a stranger may send requests here, but with its own name as host or origin."""
        hosts, origin = self.headers.get_all("Host", []), self.headers.get("Origin")
        own_origin = origin is None or origin.removeprefix("http://") in self.server.hosts
        return len(hosts) == 1 and hosts[0] in self.server.hosts and own_origin

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """As any other refusal: of what a client sent, nothing is repeated."""
        self._refuse(HTTPStatus(code), with_body=True)

    def _refuse(self, status: HTTPStatus, with_body: bool) -> None:
        self.close_connection = True
        self._send(status, "text/plain", status.phrase.encode(), with_body)

    def _send(self, status: HTTPStatus, media_type: str, content: bytes, with_body: bool) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are logged for debugging alone, without the token."""
        log.debug("%s", printable((format % args).replace(self.server.site.token, "TOKEN")))
