"""With everything in sight, MiB keeps what fine-tuning loses (T50)."""

import importlib.util
import sys
from pathlib import Path

import pytest

from continual_segment.lab.baselines import METHODS
from continual_segment.training import history

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "spheres.py"


@pytest.fixture(scope="module")
def spheres():
    specification = importlib.util.spec_from_file_location("spheres", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["spheres"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["spheres"]


def test_mib_keeps_an_old_organ_that_stays_in_sight_and_fine_tuning_loses_it(spheres, tmp_path, monkeypatch):
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")
    config = spheres.settings(100)
    first = spheres.first_network(config, tmp_path / "first")
    assert spheres.dice(first)[0] > 0.8
    found = {
        name: spheres.dice(spheres.learn_all(METHODS[name], first, config, tmp_path / name, (1,)))
        for name in ("fine-tuning", "mib")
    }
    assert found["fine-tuning"][0] < 0.2
    assert found["mib"][0] > 0.7
    assert min(new for _, new in found.values()) > 0.7
