"""Tiny phantoms, prepared datasets and a model with two packs, made once per session.

What a fixture of the session gives is shared by all tests: copy a model before changing it.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # here and in every process the tests start

import pytest
import torch

from continual_segment.config import load_preset
from continual_segment.data.prepare import prepare
from continual_segment.data.raw import RawDataset
from continual_segment.lab.phantom import write_phantom
from continual_segment.learning import learn_dataset
from continual_segment.model import Model

CASES = {"totalseg": 6, "chest": 8}  # so that every split has what tests ask of it
SEEDS = {"totalseg": 4, "chest": 0}  # so that the training cases show every organ
SPACING_MM = (16.0, 16.0, 16.0)
SOURCE = Path(__file__).parents[1] / "src"

torch.set_num_threads(1)  # networks this small wait for threads longer than they compute


@pytest.fixture(scope="session")
def preset():
    return load_preset("tiny")


@pytest.fixture(scope="session")
def raw_folders(tmp_path_factory):
    """Raw phantom datasets by name."""
    folder = tmp_path_factory.mktemp("raw")
    return {
        name: write_phantom(
            folder, name, cases, SEEDS[name], SPACING_MM, workers=1, organs="demo", progress=False
        )
        for name, cases in CASES.items()
    }


@pytest.fixture(scope="session")
def raw_datasets(raw_folders):
    return {name: RawDataset.open(folder, workers=1, progress=False) for name, folder in raw_folders.items()}


@pytest.fixture(scope="session")
def datasets(raw_datasets, preset, tmp_path_factory):
    """Prepared datasets by name."""
    folder = tmp_path_factory.mktemp("prepared")
    return {
        name: prepare(raw, folder / name, preset.prepare, workers=1, progress=False)
        for name, raw in raw_datasets.items()
    }


@pytest.fixture(scope="session")
def base_model_folder(datasets, preset, tmp_path_factory):
    """A model with the pack `totalseg`."""
    folder = tmp_path_factory.mktemp("base") / "model"
    learn_dataset(datasets["totalseg"], folder, preset, "totalseg")
    return folder


@pytest.fixture(scope="session")
def chest_pack(base_model_folder, datasets, preset, tmp_path_factory):
    """A pack learned on the base model's encoder."""
    folder = tmp_path_factory.mktemp("chest") / "model"
    shutil.copytree(base_model_folder, folder)
    return learn_dataset(datasets["chest"], folder, preset, "chest")


@pytest.fixture(scope="session")
def shared_model_folder(base_model_folder, chest_pack, tmp_path_factory):
    """A model with the packs `totalseg` and `chest`; only to be read."""
    folder = tmp_path_factory.mktemp("shared") / "model"
    shutil.copytree(base_model_folder, folder)
    Model.open(folder).add(chest_pack)
    return folder


@pytest.fixture
def model_folder(shared_model_folder, tmp_path):
    """A model with both packs that a test may change."""
    return Path(shutil.copytree(shared_model_folder, tmp_path / "model"))


@pytest.fixture
def base_folder(base_model_folder, tmp_path):
    """A model with the pack `totalseg` that a test may change."""
    return Path(shutil.copytree(base_model_folder, tmp_path / "base"))


@pytest.fixture(scope="session")
def scan_path(raw_datasets, datasets):
    """A held-out scan of the base dataset."""
    held_out = datasets["totalseg"].case_names("test")[0]
    return next(case.scan for case in raw_datasets["totalseg"].cases if case.name == held_out)


@pytest.fixture(scope="session")
def quick():
    """A learning config with other settings of all training, such as quick(iterations=3)."""

    def change(config, **settings):
        return replace(
            config, first=replace(config.first, **settings), later=replace(config.later, **settings)
        )

    return change


@pytest.fixture(scope="session")
def contents():
    """Every file of a folder with its bytes, by its path in the folder."""

    def read(folder):
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    return read


@pytest.fixture
def python():
    """Start Python with this package and one thread; the caller waits for it, and none outlives the test."""
    started = []

    def start(*arguments, **options):
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
