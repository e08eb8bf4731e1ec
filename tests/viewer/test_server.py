"""The viewer's server: what it answers, and all that it does not."""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import pytest
from made_views import made_labels, made_scan

from continual_segment.errors import ConfigError
from continual_segment.files import write_labels, write_scan
from continual_segment.viewer.server import (
    ADDRESS,
    CONTENT_SECURITY_POLICY,
    MOST_CONNECTIONS,
    Handler,
    Resource,
    Site,
    ViewerServer,
    json_resource,
)

EVIL = "<script>window.hacked=1</script>"


def request(server: ViewerServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


@pytest.fixture
def server(case_folder, serve) -> ViewerServer:
    return serve([case_folder / "scans", case_folder / "results"])


def test_it_listens_on_the_loopback_device_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/", server.address)


def test_every_route_of_its_table_is_answered(server):
    for route in server.site.resources:
        status, content = request(server, f"/{server.site.token}/{route}")
        assert (status, bool(content)) == (200, not route.endswith(".bin")), route


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/index.html",
        "//index.html",
        "/wrong/index.html",
        "/TOKEN",
        "/TOKEN/../TOKEN/index.html",
        "/TOKEN/../../../../etc/passwd",
        "/TOKEN/..%2f..%2fetc%2fpasswd",
        "/TOKEN/%2e%2e/index.html",
        "/TOKEN//etc/passwd",
        "/TOKEN/./index.html",
        "/TOKEN/index.html?x=1",
        "/TOKEN/index.html%00",
        "/TOKEN/cases/0/../1/case.json",
        "/TOKEN/cases/99/case.json",
        "/TOKEN/cases/-1/case.json",
        "/TOKEN/cases/0/compare/0-0.json",
        "/TOKEN/server.py",
        "/TOKEN/" + "a" * 5000,
    ],
)
def test_other_paths_are_not_found(server, path):
    status, content = request(server, path.replace("TOKEN", server.site.token))
    assert status == 404
    assert content == b"Not Found"


def test_a_wrong_token_is_refused_also_where_it_is_the_beginning_of_the_right_one(server):
    token = server.site.token
    for wrong in (token[:-1], token + "x", token.swapcase(), "", "é"):
        assert server.site.find(f"/{wrong}/index.html") is None
    assert server.site.find(f"/{token}/index.html") is not None


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "", "evil.example:80"]
)
def test_another_host_is_refused(server, host):
    """As in DNS rebinding, where a stranger's name leads to this machine."""
    assert request(server, f"/{server.site.token}/index.html", Host=host)[0] == 403


def test_its_own_names_are_accepted(server):
    for name in ("127.0.0.1", "localhost"):
        assert request(server, f"/{server.site.token}/", Host=f"{name}:{server.server_port}")[0] == 200


def test_a_request_with_two_hosts_or_none_is_refused(server):
    for hosts in ("", f"Host: {ADDRESS}:{server.server_port}\r\nHost: evil.example\r\n"):
        with socket.create_connection((ADDRESS, server.server_port), timeout=20) as connection:
            line = f"GET /{server.site.token}/ HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n"
            connection.sendall(line.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 403")


def test_a_page_of_another_origin_is_refused(server):
    path = f"/{server.site.token}/cases.json"
    assert request(server, path, Origin="http://evil.example")[0] == 403
    assert request(server, path, Origin="null")[0] == 403
    assert request(server, path, Origin=server.address[:-1].rpartition("/")[0])[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(server, method):
    assert request(server, f"/{server.site.token}/", method)[0] == 501


def test_answers_carry_a_strict_policy(server):
    connection = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=20)
    connection.request("HEAD", f"/{server.site.token}/")
    answer = connection.getresponse()
    assert answer.getheader("Content-Security-Policy") == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert answer.read() == b""
    connection.close()


def test_the_page_names_no_address_outside():
    folder = Path(__file__).parents[2] / "src" / "continual_segment" / "viewer" / "static"
    own = [
        path
        for path in folder.iterdir()
        if path.suffix in (".html", ".css", ".js") and "niivue" not in path.name
    ]
    addresses = [each for path in own for each in re.findall(r"https?://[^\"'\s]+", path.read_text())]
    assert len(own) > 8
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}  # a name, never fetched


def test_the_page_makes_no_markup_of_strings():
    folder = Path(__file__).parents[2] / "src" / "continual_segment" / "viewer" / "static"
    for path in folder.glob("*.js"):
        if "niivue" not in path.name:
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", path.read_text()
            ), path


def test_names_from_files_are_data_and_are_cut(tmp_path, serve):
    write_scan(tmp_path / "ct.nii.gz", made_scan())
    write_labels(tmp_path / "labels.nii.gz", made_labels(names={5: EVIL, 1: "spleen" * 500}))
    server = serve([tmp_path / "ct.nii.gz", tmp_path / "labels.nii.gz"])
    status, content = request(server, f"/{server.site.token}/cases/0/case.json")
    shown = {organ["shown"] for organ in json.loads(content)["organs"]}
    assert status == 200
    assert EVIL in shown  # as JSON; the page shows it as text, see test_browser.py
    assert max(map(len, shown)) <= 203


def test_a_browser_without_graphics_card_gets_the_same_case_on_fewer_voxels(case_folder, serve, monkeypatch):
    monkeypatch.setattr("continual_segment.viewer.site.MOST_WITHOUT_GRAPHICS", 8000)
    server = serve([case_folder / "scans" / "case_a.nii.gz", case_folder / "truth"])
    found = {
        route: json.loads(request(server, f"/{server.site.token}/{route}/0/case.json")[1])
        for route in ("cases", "coarse")
    }
    assert [found[route]["reduced"] for route in ("cases", "coarse")] == [False, True]
    assert prod(found["coarse"]["shape"]) <= 8000
    assert found["coarse"]["maps"][0]["organs"] == found["cases"]["maps"][0]["organs"]


def test_a_file_that_cannot_be_read_is_an_error_of_its_case_alone(case_folder, serve):
    (case_folder / "truth" / "case_a.nii.gz").write_bytes(b"no image")
    server = serve([case_folder / "scans", case_folder / "truth"])
    answers = [request(server, f"/{server.site.token}/cases/{number}/case.json") for number in (0, 1)]
    assert [status for status, _ in answers] == [422, 200]
    assert "case_a.nii.gz" in json.loads(answers[0][1])["error"]


def raw(server: ViewerServer, sent: bytes) -> bytes:
    """All that the server answers to these bytes before it closes the connection."""
    with socket.create_connection((ADDRESS, server.server_port), timeout=20) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def headers_of(server: ViewerServer, more: str = "") -> str:
    return f"Host: {ADDRESS}:{server.server_port}\r\n{more}\r\n"


@pytest.mark.parametrize("more", ["Content-Length: 60\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_request_with_a_body_is_refused_and_its_body_is_no_second_request(server, more):
    inside = f"GET /{server.site.token}/ HTTP/1.1\r\n{headers_of(server)}"
    answer = raw(server, f"GET /{server.site.token}/ HTTP/1.1\r\n{headers_of(server, more)}{inside}".encode())
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (f"GET /{'a' * 70_000} HTTP/1.1", b"414"),
        (f"{EVIL} / HTTP/1.1", b"501"),
        (f"EVIL{'X' * 100} / HTTP/1.1", b"501"),
        ("GET / HTTP/9.9", b"505"),
        ("GET http://evil.example/ HTTP/1.1", b"404"),
    ],
)
def test_wrong_requests_are_refused_with_all_headers_and_nothing_of_them_repeated(
    server, request_line, status
):
    answer = raw(server, f"{request_line}\r\n{headers_of(server)}".encode())
    assert answer.split(b" ")[1] == status
    assert CONTENT_SECURITY_POLICY.encode() in answer
    assert b"text/plain" in answer
    assert not re.search(rb"EVIL|evil|<script|aaa", answer)


@pytest.mark.parametrize("more", ["X: 1\r\n" * 200, f"X: {'a' * 70_000}\r\n"])
def test_many_or_long_headers_are_refused(server, more):
    sent = f"GET /{server.site.token}/ HTTP/1.1\r\n{headers_of(server, more)}"
    assert raw(server, sent.encode()).startswith(b"HTTP/1.1 431")


def test_a_refused_connection_is_closed(server):
    assert b"Connection: close" in raw(server, f"GET / HTTP/1.1\r\n{headers_of(server)}".encode())


def test_many_connections_leave_the_server_alive_and_bounded(small_site, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 1.0)
    server = small_site(lambda: b"page")
    silent = [
        socket.create_connection((ADDRESS, server.server_port), timeout=20)
        for _ in range(MOST_CONNECTIONS + 20)
    ]
    time.sleep(0.5)
    handling = sum("process_request_thread" in thread.name for thread in threading.enumerate())
    assert handling <= MOST_CONNECTIONS
    time.sleep(1.5)  # a silent connection is given up
    assert request(server, f"/{server.site.token}/") == (200, b"page")
    for connection in silent:
        connection.close()


def test_a_port_in_use_is_named(server):
    with pytest.raises(ConfigError, match=str(server.server_port)):
        ViewerServer(server.site, server.server_port)
    with pytest.raises(ConfigError, match="70000"):
        ViewerServer(server.site, 70000)


def test_two_sites_have_two_tokens():
    table = {"": Resource("text/plain", lambda: b"")}
    assert Site(table).token != Site(table).token


@pytest.fixture
def small_site() -> Iterator[Callable[[Callable[[], bytes]], ViewerServer]]:
    """Serves one resource."""
    servers: list[ViewerServer] = []

    def start(make: Callable[[], bytes]) -> ViewerServer:
        servers.append(ViewerServer(Site({"": Resource("text/plain", make)})))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.05}).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_value_that_json_cannot_express_is_an_error_of_its_request(small_site):
    server = small_site(json_resource(lambda: {"mean_score": float("nan")}).make)
    status, content = request(server, f"/{server.site.token}/")
    assert status == 422
    assert "error" in json.loads(content)


def test_a_client_that_reads_too_slowly_gets_no_second_answer_within_the_first(small_site, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 0.3)
    size = 30_000_000
    server = small_site(lambda: bytes(size))
    line = f"GET /{server.site.token}/ HTTP/1.1\r\nHost: {ADDRESS}:{server.server_port}\r\n\r\n"
    with socket.create_connection((ADDRESS, server.server_port), timeout=20) as connection:
        connection.sendall(line.encode())
        time.sleep(0.5)  # longer than the server waits once, shorter than twice
        received = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert len(received) < size
    assert b"422" not in received


def test_a_page_that_is_closed_meanwhile_is_no_traceback(small_site, capfd):
    server = small_site(lambda: bytes(30_000_000))
    line = f"GET /{server.site.token}/ HTTP/1.1\r\nHost: {ADDRESS}:{server.server_port}\r\n\r\n"
    connection = socket.create_connection((ADDRESS, server.server_port), timeout=20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets on close
    connection.sendall(line.encode())
    connection.recv(10)
    connection.close()
    other = socket.create_connection((ADDRESS, server.server_port), timeout=20)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.sendall(b"GET ")
    other.close()
    assert request(server, "/")[0] == 404
    time.sleep(0.3)
    assert capfd.readouterr().err == ""
