"""Cases to show, and a server that shows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from made_views import made_labels, made_scan

from continual_segment.files import write_json, write_labels, write_scan
from continual_segment.viewer.server import ViewerServer
from continual_segment.viewer.view import open_server
from continual_segment.volume import LabelMap

REASONS = {"packs": ".nii.gz", "scores": ".nii.gz", "quality": ".json"}


@pytest.fixture
def case_folder(tmp_path: Path) -> Path:
    """Two cases: scans/, truth/ and results/ as `conseg segment` writes it, where the second case failed."""
    for name in ("case_a", "case_b"):
        write_scan(tmp_path / "scans" / f"{name}.nii.gz", made_scan())
        write_labels(tmp_path / "truth" / f"{name}.nii.gz", made_labels())
    results = tmp_path / "results"
    write_labels(results / "case_a.nii.gz", made_labels(moved=2))
    reasons = [f"{kind}/case_a{ending}" for kind, ending in REASONS.items()]
    manifest = {
        "input": {"warnings": ["The scan seems to be cropped."]},
        "files": ["case_a.nii.gz", *reasons],  # some tests write the reasons, too
    }
    write_json(results / "manifest" / "case_a.json", manifest)
    return tmp_path


@pytest.fixture
def many_packs(case_folder: Path) -> Path:
    """The case with results, of a model of 300 packs: the liver is of the last, the spleen of the 44th."""
    results, labels = case_folder / "results", made_labels()
    numbers = np.select([labels.voxels == 5, labels.voxels == 1], [300, 44]).astype(np.uint16)
    names = {number: f"pack {number}" for number in range(1, 301)}
    write_labels(results / "packs" / "case_a.nii.gz", LabelMap(numbers, labels.grid, names))
    write_labels(results / "case_a.nii.gz", labels)
    files = ["case_a.nii.gz", "packs/case_a.nii.gz"]
    write_json(results / "manifest" / "case_a.json", {"files": files})
    return case_folder


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ViewerServer]]:
    """Start a viewer; all of them stop when the test ends."""
    servers: list[ViewerServer] = []

    def start(paths: Sequence[Path], model: Path | None = None) -> ViewerServer:
        servers.append(open_server(paths, model, tmp_path_factory.mktemp("viewer")))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.05}).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
