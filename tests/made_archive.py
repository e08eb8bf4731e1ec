"""Orthanc with its DICOMweb plug-in on loopback, and a web server that answers what a test tells it to."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from continual_segment.node.config import TlsConfig


def dcmtk(name: str) -> str | None:
    """Where a program of DCMTK is; pynetdicom has some of the same names in Python's own folder."""
    own = {Path(sysconfig.get_path("scripts")), Path(sys.executable).parent}
    folders = [each for each in os.get_exec_path() if Path(each) not in own]
    return shutil.which(name, path=os.pathsep.join(folders))


ORTHANC = shutil.which("Orthanc", path="/usr/sbin:/usr/local/sbin:/usr/bin")
PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
needs_orthanc = pytest.mark.skipif(
    ORTHANC is None or not PLUGIN.exists(),
    reason="Orthanc or its DICOMweb plug-in is not installed (apt-get install orthanc orthanc-dicomweb)",
)
DCMTK = ("echoscu", "storescu", "storescp", "findscu", "dcmdump", "dcm2xml")
needs_dcmtk = pytest.mark.skipif(
    any(dcmtk(tool) is None for tool in DCMTK), reason="DCMTK is not installed (apt-get install dcmtk)"
)
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed, which makes certificates"
)
USER, PASSWORD = "conseg", "not-a-secret"
NEW_KEY = ("-newkey", "rsa:2048", "-nodes")
LOOPBACK = "IP:127.0.0.1"


@dataclass(frozen=True)
class Orthanc:
    """An archive that runs."""

    dicom_port: int
    web_port: int

    @property
    def root(self) -> str:
        return f"127.0.0.1:{self.web_port}/dicom-web"

    def get(self, path: str) -> Any:
        """Its own interface, which is not DICOMweb."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.web_port}{path}")
        request.add_header("Authorization", basic())
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read() if path.endswith("/file") else json.load(answer)

    def files(self, modality: str) -> list[bytes]:
        """All objects of a modality, as they are stored."""
        tags = {each: self.get(f"/instances/{each}/simplified-tags") for each in self.get("/instances")}
        return [
            self.get(f"/instances/{each}/file")
            for each, found in tags.items()
            if found["Modality"] == modality
        ]


def basic() -> str:
    return f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"


@contextmanager
def orthanc(folder: Path, **settings: Any) -> Iterator[Orthanc]:
    """Start it in a new folder, wait until it answers, and stop it at the end."""
    archive = Orthanc(free_port(), free_port())
    folder.mkdir(parents=True)
    config = {
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "storage"),
        "HttpPort": archive.web_port,
        "DicomPort": archive.dicom_port,
        "DicomAet": "ARCHIVE",
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": True,
        "RegisteredUsers": {USER: PASSWORD},
        "DicomAlwaysAllowStore": True,
        "DicomAlwaysAllowFind": True,
        "Plugins": [str(PLUGIN)],
    }
    (folder / "orthanc.json").write_text(json.dumps(config | settings))
    assert ORTHANC is not None
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([ORTHANC, str(folder / "orthanc.json")], stdout=log, stderr=log)
    try:
        _wait(archive, process, folder / "log")
        yield archive
    finally:
        process.terminate()
        process.wait(20)


def _wait(archive: Orthanc, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        try:
            archive.get("/system")
            return
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)


def run_dcmtk(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    program = dcmtk(name)
    assert program is not None
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def certificate(folder: Path, name: str) -> TlsConfig:
    """A certificate that signs itself."""
    key, own = folder / f"{name}.key", folder / f"{name}.pem"
    openssl("req", "-x509", *NEW_KEY, "-days", "2", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName={LOOPBACK}", "-keyout", key, "-out", own)  # fmt: skip
    return TlsConfig(own, key, own)


def signed(folder: Path, name: str, authority: TlsConfig) -> TlsConfig:
    """A certificate that an authority signs, as in a hospital."""
    key, own, request = (folder / f"{name}.{kind}" for kind in ("key", "pem", "csr"))
    extensions = folder / f"{name}.cnf"
    extensions.write_text(f"subjectAltName={LOOPBACK}\nauthorityKeyIdentifier=keyid\n")
    openssl("req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key,
            "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", own)  # fmt: skip
    return TlsConfig(own, key, authority.certificate)


def openssl(*arguments: Any) -> None:
    command = ["openssl", *map(str, arguments)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr


@dataclass
class Reply:
    """What a made-up archive answers."""

    body: bytes = b""
    content_type: str = "application/dicom+json"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    endless: bool = False
    """Repeats its body without an end."""
    slow_seconds: float = 0.0
    """Between single bytes of the body."""


@contextmanager
def made_up(
    *replies: Reply, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """A server that gives these answers, the last of them again and again; and all that it was asked."""
    asked, left = [], list(replies)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            asked.append((f"{self.command} {self.path}", dict(self.headers), self.rfile.read(length)))
            reply = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(reply.status)
            for name, value in (("Content-Type", reply.content_type), *reply.headers):
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the other side has hung up
                self._write(reply)

        do_POST = do_GET

        def _write(self, reply: Reply) -> None:
            if reply.slow_seconds:
                for byte in reply.body:
                    self.wfile.write(bytes([byte]))
                    time.sleep(reply.slow_seconds)
            else:
                self.wfile.write(reply.body)
            while reply.endless:
                self.wfile.write(reply.body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}/root", asked
    finally:
        server.shutdown()
        server.server_close()
