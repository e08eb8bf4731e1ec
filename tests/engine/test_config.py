"""Addresses and limits of an engine."""

import json
import sys

import pytest

from continual_segment.engine import EngineConfig
from continual_segment.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "scheduler"),
    [
        ("dask://scheduler:8786", "tcp://scheduler:8786"),
        ("dask+tls://node-1.example.org:8786", "tls://node-1.example.org:8786"),
        ("dask://[::1]:9", "tcp://[::1]:9"),
    ],
)
def test_an_address_names_a_host_and_a_port(address, scheduler):
    assert EngineConfig(address).scheduler == scheduler


@pytest.mark.parametrize(
    "address",
    [
        "scheduler:8786",
        "tcp://scheduler:8786",
        "dask://scheduler",
        "dask://scheduler:0",
        "dask://scheduler:70000",
        "dask://user@scheduler:8786",
        "dask://scheduler:8786/path",
        "dask://sched\nuler:8786",
        "dask://-x:8786",
        "dask://relative/scheduler.json",
        "ray://scheduler:10001",
        "",
    ],
)
def test_anything_else_is_refused(address):
    with pytest.raises(ConfigError, match="--engine"):
        EngineConfig(address)


def test_the_file_of_a_scheduler_is_read(tmp_path):
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"type": "Scheduler", "address": "tcp://10.0.0.1:8786"}))
    assert EngineConfig(f"dask://{path}").scheduler == "tcp://10.0.0.1:8786"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"address": 3}', '{"address": "inproc://x/1"}', '{"address": "tcp://x:99999"}'],
)
def test_a_file_that_names_no_scheduler_is_refused_with_its_path(content, tmp_path):
    path = tmp_path / "scheduler.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"scheduler\.json"):
        _ = EngineConfig(f"dask://{path}").scheduler


def test_an_absent_file_is_refused_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(ConfigError, match="--scheduler-file"):
        _ = EngineConfig(f"dask://{tmp_path}/none.json").scheduler


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_limits_are_positive(wrong):
    with pytest.raises(ConfigError, match="--"):
        EngineConfig("dask://scheduler:8786", **wrong)


def test_segmenting_without_an_engine_imports_nothing_of_dask(python):
    code = "import sys, continual_segment.clinic.segment, continual_segment.lab.benchmark.run; " + (
        "sys.exit(bool({'dask', 'distributed', 'tornado'} & sys.modules.keys()))"
    )
    process = python("-c", code)
    _, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems


def test_a_missing_extra_is_one_sentence(monkeypatch):
    from continual_segment.engine.dask_cluster import connect

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[dask\]'"):
        connect("tcp://127.0.0.1:9", "dask://127.0.0.1:9")
