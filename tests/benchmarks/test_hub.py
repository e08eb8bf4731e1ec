"""The benchmark of hundreds of packs, with two."""

import importlib
import sys
from pathlib import Path

import pytest

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.files import read_scan
from continual_segment.model import Model
from continual_segment.organs import BODY_PARTS

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("hub"), importlib.import_module("made_up_hub")
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def made(scripts, tmp_path_factory):
    folder, (_, made_up) = tmp_path_factory.mktemp("hub"), scripts
    scan = made_up.make_body(folder / "scan.nii.gz", (40, 48, 48), (5.0, 8.0, 8.0))
    hub = made_up.Hub(2, preset="tiny", plan="projection", found_share=0.02, spacing_mm=8.0)
    return scan, made_up.make_hub(folder / "model", hub, scan)


def test_packs_share_an_organ_and_the_regressor_finds_every_body_part(made):
    scan, folder = made
    model = Model.open(folder)
    first, second = (model.pack(name) for name in model.pack_names)
    assert first.organs[-1] == second.organs[0]
    assert len({*first.organs, *second.organs}) == 9
    assert (first.coverage, second.coverage) == (
        dict.fromkeys(BODY_PARTS, 1.0),
        {"abdomen": 1.0, "chest": 0.5},
    )
    regions = BodyPartRegressor.of_model(model).regions(read_scan(scan))
    assert [*regions.slices] == [*BODY_PARTS]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
def test_a_run_is_divided_into_its_parts(scripts, made, tmp_path):
    hub, _ = scripts
    scan, model = made
    found = hub.segment(tmp_path, scan, model, 0.5)
    parts = found["seconds"]
    assert parts.keys() == {"encoder", "decoders", "accumulating", "merging", "export", "loading"}
    assert min(parts.values()) > 0
    assert sum(parts.values()) < found["all"]
    assert found["organs"] > 0
    assert 0 < found["labelled"] < 0.5  # small places
    assert found["peak"] > 50e6
    assert hub.line(2, found, found["peak"]).split()[:1] == ["2"]
