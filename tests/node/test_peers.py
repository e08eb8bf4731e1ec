"""Senders and archives that are not ours: DCMTK, TLS with strangers, peers that break the protocol."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace

import gdcm
import pytest
from made_archive import certificate, dcmtk, needs_dcmtk, needs_openssl, run_dcmtk, signed
from made_node import SHORT, archive, config_for, echo, running, send, states, until
from made_scans import compress, read_header, write_series

from continual_segment.errors import ConfigError
from continual_segment.node.config import TlsConfig
from continual_segment.node.receive import LARGEST_PDU_BYTES, PDU_FACTOR
from continual_segment.node.tls import client_context

COMPRESSIONS = {  # how storescu proposes it -> how gdcm makes it
    "--propose-j2k-lossless": gdcm.TransferSyntax.JPEG2000Lossless,
    "--propose-jls-lossless": gdcm.TransferSyntax.JPEGLSLossless,
    "--propose-lossless": gdcm.TransferSyntax.JPEGLosslessProcess14_1,
    "--propose-rle": gdcm.TransferSyntax.RLELossless,
    "--propose-little": None,
    "--propose-implicit": None,
}


@contextmanager
def storescp(folder, *options):
    """DCMTK's archive, which writes a file per object."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    command = [dcmtk("storescp"), *map(str, options), "-aet", "ARCHIVE", "-od", str(folder), str(port)]
    process = subprocess.Popen(command)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@needs_dcmtk
def test_dcmtk_sends_in_every_compression_and_stores_the_results(tmp_path):
    with storescp(tmp_path / "stored") as port, running(config_for(tmp_path, port)) as node:
        assert run_dcmtk("echoscu", "-aec", "CONSEG", "127.0.0.1", node.address[1]).returncode == 0
        assert run_dcmtk("echoscu", "-aec", "OTHER", "127.0.0.1", node.address[1]).returncode != 0
        for number, (option, syntax) in enumerate(COMPRESSIONS.items()):
            folder = tmp_path / f"sent{number}"
            for path in write_series(folder, SHORT, SeriesInstanceUID=f"1.2.{number}"):
                if syntax is not None:
                    compress(path, syntax)
            found = run_dcmtk(
                "storescu", option, "+sd", "-aec", "CONSEG", "127.0.0.1", node.address[1], folder
            )
            assert found.returncode == 0, found.stderr
        until(node, lambda: states(node) == ["done"] * len(COMPRESSIONS))
    stored = [read_header(path) for path in (tmp_path / "stored").iterdir()]
    assert {each.Modality for each in stored} == {"SEG"}
    assert len(stored) == len(COMPRESSIONS)


@needs_openssl
def test_with_tls_strangers_and_unencrypted_peers_are_not_served(tmp_path):
    own, stranger = certificate(tmp_path, "hospital"), certificate(tmp_path, "stranger")
    with running(replace(config_for(tmp_path, 1), tls=own)) as node:
        port = node.address[1]
        assert echo(port) is None
        lone = ssl.create_default_context(cafile=str(own.authorities))  # shows no certificate
        assert echo(port, tls=lone) is None
        assert echo(port, tls=client_context(replace(stranger, authorities=own.authorities))) is None
        with socket.create_connection(("127.0.0.1", port)):  # one that never shakes hands delays no other
            assert echo(port, tls=client_context(own)) == 0


@needs_dcmtk
@needs_openssl
def test_dcmtk_sends_and_stores_over_tls_with_certificates_of_one_authority(tmp_path):
    authority, stranger = certificate(tmp_path, "authority"), certificate(tmp_path, "stranger")
    own, scanner, pacs = (signed(tmp_path, name, authority) for name in ("conseg", "scanner", "pacs"))
    write_series(tmp_path / "sent", SHORT)
    with (
        storescp(tmp_path / "stored", *dcmtk_tls(pacs)) as port,
        running(replace(config_for(tmp_path, port), tls=own)) as node,
    ):
        to_node = ["-aec", "CONSEG", "127.0.0.1", node.address[1]]
        assert run_dcmtk("echoscu", *dcmtk_tls(scanner), *to_node).returncode == 0
        strangers = replace(stranger, authorities=authority.certificate)
        for options in ([], ["+tla", "-ic"], dcmtk_tls(strangers)):
            assert run_dcmtk("storescu", "+sd", *options, *to_node, tmp_path / "sent").returncode != 0
        assert states(node) == []
        mistrusted = dcmtk_tls(replace(scanner, authorities=stranger.certificate))
        assert "certificate verify failed" in run_dcmtk("echoscu", *mistrusted, *to_node).stderr
        found = run_dcmtk("storescu", "+sd", *dcmtk_tls(scanner), *to_node, tmp_path / "sent")
        assert found.returncode == 0, found.stderr
        until(node, lambda: states(node) == ["done"])
    (stored,) = (tmp_path / "stored").iterdir()
    assert read_header(stored).Modality == "SEG"


def dcmtk_tls(tls):
    return ["+tls", tls.key, tls.certificate, "+cf", tls.authorities]


def test_a_missing_certificate_is_an_error_that_names_it(tmp_path):
    config = replace(config_for(tmp_path, 1), tls=TlsConfig(*[tmp_path / "missing.pem"] * 3))
    for _ in range(2):  # the folder is free again
        with pytest.raises(ConfigError, match=r"missing\.pem"), running(config):
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x01\x00" + (PDU_FACTOR * LARGEST_PDU_BYTES + 1).to_bytes(4, "big") + b"x" * 1000,
        b"\x04\x00\x00\x00\x00\x08" + b"\xff" * 8,  # data without an association
        b"\x01\x00\x00\x00\x00\x04\x00\x01\x00\x00",  # a request that is cut short
    ],
)
def test_a_peer_that_breaks_the_protocol_is_disconnected_and_others_are_served(tmp_path, data):
    with running(config_for(tmp_path, 1)) as node:
        with socket.create_connection(node.address, timeout=20) as peer:
            peer.sendall(data)
            started = time.monotonic()
            while peer_answers(peer):
                pass
            assert time.monotonic() - started < 20
        assert echo(node.address[1]) == 0


def peer_answers(peer):
    try:
        return peer.recv(4096)
    except ConnectionError:
        return b""


def test_a_damaged_queue_is_an_error_that_names_the_file(tmp_path):
    config = config_for(tmp_path, 1)
    config.folder.mkdir()
    (config.folder / "queue.sqlite").write_bytes(b"no database" * 1000)
    for _ in range(2):  # the folder is free again
        with pytest.raises(ConfigError, match=r"queue\.sqlite"), running(config):
            pass


def test_what_a_kill_left_unrecorded_is_removed_and_what_was_recorded_is_segmented(tmp_path):
    sent = [read_header(path) for path in write_series(tmp_path / "sent", SHORT)]
    with archive() as (port, received):
        config = config_for(tmp_path, port, silence_seconds=3600)
        with running(config) as node:
            send(node.address[1], sent)
            folder = node.store.slices_of(node.queue.all_series()[0].id)
        (folder / "0123.dcm").write_bytes(b"written, but never recorded")
        (folder / ".unfinished-0123-4.dcm").write_bytes(b"half")
        with running(config_for(tmp_path, port)) as node:
            assert len(list(folder.iterdir())) == len(sent)
            until(node, lambda: states(node) == ["done"])
    assert len(received) == 1
