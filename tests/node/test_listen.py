"""`conseg listen` with a trained model: its configuration, its status, its end."""

from __future__ import annotations

import re
import signal
import threading

import highdicom as hd
import pytest
from made_node import archive, send
from made_scans import read_header, write_phantom_series

from continual_segment.cli.main import main
from continual_segment.errors import ConfigError
from continual_segment.node.config import ListenConfig, Retries, read_node_config

CONFIG = """
folder = "node"

[listen]
ae_title = "CONSEG"
port = 0
health_port = 0
silence_seconds = 0.5

[limits]
free_disk_mb = 1

[[destinations]]
name = "archive"
host = "127.0.0.1"
port = {port}
ae_title = "ARCHIVE"

[[rules]]
model = ["{model}"]
segment = {{ overlap = 0.25 }}
"""


def test_listen_segments_with_a_model_and_stops_on_sigterm(
    tmp_path, shared_model_folder, scan_path, python, capsys
):
    arrived = threading.Event()
    slices = [read_header(path) for path in write_phantom_series(tmp_path / "sent", scan_path)]
    with archive(before_answer=lambda count: arrived.set()) as (port, received):
        config = tmp_path / "node.toml"
        config.write_text(CONFIG.format(port=port, model=shared_model_folder))
        process = python("-m", "continual_segment.cli.main", "listen", config)
        announced = re.search(r"127\.0\.0\.1:(\d+)", process.stderr.readline())
        assert set(send(int(announced[1]), slices)) == {0}
        assert arrived.wait(120), process.kill() or process.communicate()
        assert main(["listen", "--status", str(config)]) == 0
        assert "The node runs" in capsys.readouterr().out
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert hd.seg.Segmentation.from_dataset(received[0]).number_of_segments > 0
    assert "SECRET" not in log
    assert "Doe" not in log
    assert main(["listen", "--status", str(config)]) == 0
    shown = capsys.readouterr().out
    assert "does not run" in shown
    assert "1 done" in shown
    assert main(["listen", "--retry", str(config)]) == 0


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("ae_title", "ae_titel", "ae_titel"),
        ('ae_title = "CONSEG"', 'ae_title = "LONGER THAN SIXTEEN"', "LONGER"),
        ("silence_seconds = 0.5", "silence_seconds = 0", "silence_seconds"),
        ("silence_seconds = 0.5", 'addresses = ["everyone"]', "everyone"),
        ("port = 0", "port = 70000", "70000"),
        ("overlap = 0.25", "overlap = 2.5", "overlap"),
        ("overlap", "overlaps", "overlaps"),
        ('ae_title = "ARCHIVE"', 'ae_title = "ARCHIVE"\nformats = ["nifti"]', "nifti"),
        ("[[rules]]", '[[rules]]\ndestinations = ["pacs"]', "pacs"),
        ('folder = "node"', "folder = 3", "folder"),
        ('folder = "node"', "", "folder"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, old, new, named):
    path = tmp_path / "node.toml"
    text = CONFIG.format(port=104, model="model")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=named) as found:
        read_node_config(path)
    assert str(path) in str(found.value)


def test_paths_start_at_the_folder_of_the_configuration(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text(CONFIG.format(port=104, model="../model"))
    config = read_node_config(path)
    assert config.folder == tmp_path / "node"
    assert config.rules[0].model == (tmp_path / "../model",)


def test_addresses_are_single_ones_and_networks():
    listen = ListenConfig(addresses=("10.1.0.0/16", "192.168.0.7", "fe80::/10"))
    allowed = ("10.1.255.1", "::ffff:10.1.2.3", "192.168.0.7", "fe80::1%eth0")
    assert all(map(listen.allows, allowed))
    assert not any(map(listen.allows, ("10.2.0.1", "192.168.0.8", "127.0.0.1", "::1")))
    assert ListenConfig().allows("127.0.0.1")


def test_waiting_times_double_up_to_the_longest():
    retries = Retries(first_wait_seconds=10, longest_wait_seconds=60)
    assert [retries.wait_seconds(attempts) for attempts in (1, 2, 3, 4, 1000)] == [10, 20, 40, 60, 60]
