"""Addresses of archives and credentials: what is understood, what is refused, who gets a secret."""

from __future__ import annotations

import pytest

from continual_segment.cli.main import main
from continual_segment.cli.segment import scan_or_archive
from continual_segment.errors import ConfigError
from continual_segment.node.config import Destination
from continual_segment.node.dicomweb.address import is_uid, parse_archive, parse_service
from continual_segment.node.dicomweb.credentials import Credentials, find_credentials, read_credentials
from continual_segment.node.dicomweb.open import open_pull


def test_an_address_names_an_archive_a_study_a_series_or_a_search():
    root, query = parse_archive("dicomweb://pacs.example.org/dicom-web/studies/1.2.3/series/1.2.4")
    assert str(root) == "https://pacs.example.org:443/dicom-web"
    assert (query.study, query.series) == ("1.2.3", "1.2.4")
    search = "StudyDate=20260101-20260131&PatientName=D%C3%BC*"
    root, query = parse_archive(f"dicomweb+http://[::1]:8042/a/b/?{search}")
    assert (str(root), query.study, root.is_loopback) == ("http://[::1]:8042/a/b", None, True)
    assert query.target("00201209", 10, 20) == (
        f"/series?{search}&Modality=CT&includefield=00201209&limit=10&offset=20"
    )
    _, query = parse_archive("dicomweb://h/studies/1.2.3")
    assert query.target("x", 1, 0).startswith("/studies/1.2.3/series?")


@pytest.mark.parametrize("scheme", ["dicomweb", "DICOMweb", "dicomweb+http"])
def test_what_the_command_line_takes_for_an_archive_is_an_address(scheme):
    text = f"{scheme}://pacs.example.org/root"
    assert scan_or_archive(text) == text
    assert parse_archive(text)[0].path == "/root"


@pytest.mark.parametrize(
    "text",
    [
        "dicomweb://",
        "dicomweb:///studies",
        "dicomweb://host:port/x",
        "dicomweb://host:99999/x",
        "dicomweb://ho st/x",
        "dicomweb://host/x/../y",
        "dicomweb://host/x\r\nX-Evil: 1",
        "dicomweb://host/studies/../series/1.2",
        "dicomweb://host/studies/1.2/series/abc",
        "dicomweb://host/x#part",
        "dicomweb://host/x?limit=5",
        "dicomweb://host/x?Modality=MR",
        "dicomweb://host/x?a=b&&=c",
        "ftp://host/x",
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(text):
    with pytest.raises(ConfigError):
        parse_archive(text)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError) as found:
        parse_service("https://me:hunter2@host/x")
    assert "hunter2" not in str(found.value)


def test_credentials_are_for_one_host_and_port_alone(tmp_path, monkeypatch):
    path = tmp_path / "credentials.toml"
    path.write_text('["one:443"]\ntoken = "abc"\n["two:8443"]\nuser = "me"\npassword = "pw"\n')
    path.chmod(0o600)
    assert find_credentials(parse_service("https://one/x"), path).header == "Bearer abc"
    assert find_credentials(parse_service("https://two:8443/x"), path).header == "Basic bWU6cHc="
    assert find_credentials(parse_service("https://two/x"), path) is None
    monkeypatch.setenv("CONSEG_DICOMWEB_TOKEN", "from-environment")
    pull = open_pull("dicomweb://source/x", "https://elsewhere/x", None)
    assert pull.archive.credentials.token == "from-environment"
    assert pull.store.credentials is None
    assert (
        open_pull("dicomweb://source/x", "https://source/y", None).store.credentials
        == pull.archive.credentials
    )
    assert open_pull("dicomweb://source/x", "", None).store == pull.archive


def test_credentials_are_not_sent_in_the_clear_except_to_this_machine(tmp_path):
    path = tmp_path / "credentials.toml"
    path.write_text('["pacs:80"]\ntoken = "abc"\n["127.0.0.1:80"]\ntoken = "abc"\n')
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="encryption"):
        find_credentials(parse_service("http://pacs/x"), path)
    assert find_credentials(parse_service("http://127.0.0.1/x"), path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('["h:1"]\ntoken = "a"\nuser = "b"', "token, or a user"),
        ('["h:1"]\nuser = "a:b"\npassword = "c"', "colon"),
        ('["h:1"]\ntoken = "a\\nX-Evil: 1"', "header"),
        ('["h:1"]\ntokem = "a"', "tokem"),
        ("[", "TOML"),
        ('token = "Evil"', "table of settings"),
    ],
)
def test_wrong_credentials_are_an_error_that_names_the_file_and_no_secret(tmp_path, text, reason):
    path = tmp_path / "credentials.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=reason) as found:
        read_credentials(path)
    assert str(path) in str(found.value)
    assert "Evil" not in str(found.value)


def test_credentials_that_others_can_read_are_refused(tmp_path):
    path = tmp_path / "credentials.toml"
    path.write_text('["h:1"]\ntoken = "a"')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_credentials(path)


def test_a_secret_is_not_part_of_what_is_printed():
    assert "hunter2" not in repr(Credentials(user="me", password="hunter2"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"url": "https://pacs/x", "host": "pacs"},
        {"url": "pacs/x"},
        {"url": "https://pacs/x?limit=3"},
        {"host": "pacs", "port": 104, "ae_title": "PACS", "credentials": "file"},
    ],
)
def test_a_destination_is_a_node_or_a_web_service(settings):
    with pytest.raises(ValueError, match=r"destination|address|AE title"):
        Destination("pacs", **settings)


def test_options_of_archives_are_refused_for_paths(tmp_path, capsys):
    assert main(["segment", str(tmp_path), "-m", str(tmp_path), "-o", str(tmp_path), "--stow"]) == 2
    assert "--stow" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1.2.\u0663", "1..2", "1.2.", "", "1.2/3", None, 3])
def test_what_is_no_uid_is_none(text):
    assert not is_uid(text)
    assert is_uid("1.2.840.10008")
