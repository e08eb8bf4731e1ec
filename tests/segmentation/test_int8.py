"""int8: the model never changes, and where int8 cannot be used float32 takes its place by name."""

import json
import logging
import shutil
import sys

import numpy as np
import pytest
import torch

from continual_segment.cli.main import main
from continual_segment.clinic.manifest import how_computed, model_request
from continual_segment.errors import ConfigError
from continual_segment.model import Model
from continual_segment.segmentation import MultiSegmenter, SegmentConfig, Segmenter, int8, openvino_runtime
from continual_segment.segmentation.int8 import NETWORK, RECORD, WEIGHTS, Int8Cache
from continual_segment.segmentation.quantise import QuantiseConfig, calibration_windows, quantise
from continual_segment.volume import Grid, Volume

INT8 = SegmentConfig(backend="int8", progress=False)
FLOAT32 = SegmentConfig(progress=False)
FEW = QuantiseConfig(windows=4)


@pytest.fixture
def vnni(monkeypatch, tmp_path):
    """A machine with VNNI: without it, the same networks run with older instructions."""
    monkeypatch.setattr(int8, "has_vnni", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def extra():
    import_without_telemetry = openvino_runtime.import_without_telemetry
    try:
        return [import_without_telemetry(package, "int8") for package in ("openvino", "nncf")]
    except ConfigError:
        pytest.skip("the extra 'int8' is not installed")


@pytest.fixture(scope="module")
def shared_cache(shared_model_folder, scan_path, extra):
    """Quantised networks of the shared model."""
    return quantise(shared_model_folder, [scan_path], FEW)


@pytest.fixture
def quantised(model_folder, shared_cache, vnni):
    """A model with a cache that a test may change."""
    shutil.copytree(shared_cache, f"{model_folder}.int8")
    return Model.open(model_folder)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def falls_back(model, caplog, *words):
    """Whether float32 takes the place of int8, with one warning that has these words."""
    caplog.clear()
    segmenter = Segmenter(model, config=INT8)
    (warning,) = warnings_of(caplog)
    assert [word for word in (*words, "float32") if word not in warning] == []
    return segmenter.engine.backend == "eager" and not segmenter.engine.quantised


def test_without_vnni_float32_takes_its_place_by_name(shared_model_folder, scan_path, monkeypatch, caplog):
    monkeypatch.setattr(int8, "has_vnni", lambda: False)
    model = Model.open(shared_model_folder)
    assert falls_back(model, caplog, str(model.folder), "VNNI")
    labels = [Segmenter(model, config=config)(scan_path).labels.voxels for config in (INT8, FLOAT32)]
    np.testing.assert_array_equal(*labels)


def test_without_the_extra_float32_takes_its_place_by_name(shared_model_folder, monkeypatch, caplog, vnni):
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert falls_back(Model.open(shared_model_folder), caplog, "pip install '.[int8]'")


def test_quantising_without_the_extra_names_it(shared_model_folder, scan_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[int8\]'"):
        quantise(shared_model_folder, [scan_path])


def test_a_manifest_names_the_backend_that_ran(shared_model_folder, monkeypatch):
    monkeypatch.setattr(int8, "has_vnni", lambda: False)
    model = Model.open(shared_model_folder)
    one, several = Segmenter(model, config=INT8), MultiSegmenter([model], config=INT8)
    assert how_computed(one) == how_computed(several) == {"device": "cpu", "backend": "eager"}
    assert model_request(one, None) == model_request(Segmenter(model, config=FLOAT32), None)


def test_a_network_is_found_for_its_own_encoder_pack_and_window_alone(tmp_path):
    cache = Int8Cache(tmp_path, "a" * 64, (8, 16, 16))
    others = [Int8Cache(tmp_path, "b" * 64, (8, 16, 16)), Int8Cache(tmp_path, "a" * 64, (8, 16, 32))]
    places = [each.place(pack) for each in (cache, *others) for pack in ("", "pack")]
    places.append(cache.place("pack", without_head=True))
    assert len(set(places)) == len(places)


@pytest.mark.usefixtures("vnni", "extra")
def test_a_model_without_a_cache_runs_in_float32(shared_model_folder, caplog):
    assert falls_back(Model.open(shared_model_folder), caplog, "encoder", "conseg quantise")


def test_int8_gives_nearly_the_outputs_of_float32_and_leaves_the_model_alone(
    model_folder, scan_path, contents, quantised, caplog
):
    before = contents(model_folder)
    segmenter, exact = (Segmenter(quantised, config=config) for config in (INT8, FLOAT32))
    assert (segmenter.engine.backend, warnings_of(caplog)) == ("int8", [])
    assert set(segmenter.engine.quantised) == {"encoder", *quantised.pack_names}
    # outputs, not labels: those of a hardly trained model are nearly tied
    (window,) = calibration_windows(quantised, [scan_path], QuantiseConfig(windows=1))
    with torch.no_grad():
        found, expected = (each.packs[0].decode(each.encode(window)) for each in (segmenter, exact))
    assert not torch.equal(found, expected)
    assert np.corrcoef(found.flatten(), expected.flatten())[0, 1] > 0.95
    segmenter(scan_path)
    assert contents(model_folder) == before


def test_a_batch_gives_what_single_windows_give(scan_path, quantised):
    labels = [
        Segmenter(quantised, config=SegmentConfig(backend="int8", windows_at_once=n, progress=False))(
            scan_path
        )
        for n in (1, 3)
    ]
    np.testing.assert_array_equal(*(each.labels.voxels for each in labels))


def test_a_result_depends_on_the_int8_networks(quantised):
    segmenter = Segmenter(quantised, config=INT8)
    assert model_request(segmenter, None)["int8"] == segmenter.engine.quantised
    assert how_computed(segmenter)["backend"] == "int8"


def test_a_pack_that_is_not_in_the_cache_runs_in_float32_by_name(quantised, caplog):
    cache = Int8Cache.of(quantised)
    (chest,) = [pack for pack in Segmenter(quantised, config=FLOAT32).packs if pack.profile.name == "chest"]
    place = cache.place(chest.profile.fingerprint, chest.accumulates_features)
    place.rename(cache.folder / "elsewhere")
    caplog.clear()
    segmenter = Segmenter(quantised, config=INT8)
    (warning,) = warnings_of(caplog)
    assert "'chest'" in warning
    assert set(segmenter.engine.quantised) == {"encoder", "totalseg"}


@pytest.mark.parametrize(
    ("file", "content"), [(WEIGHTS, b"other"), (NETWORK, b"<xml>"), (RECORD, b"{"), (RECORD, b"{}")]
)
def test_a_damaged_cache_is_not_used(quantised, caplog, file, content):
    place = Int8Cache.of(quantised).place()
    (place / file).write_bytes(content)
    assert falls_back(quantised, caplog, str(place))


@pytest.mark.usefixtures("vnni")
def test_a_network_that_cannot_be_compiled_is_not_used(shared_model_folder, caplog, monkeypatch):
    def fail(ov, network):
        raise RuntimeError("unsupported operation")

    monkeypatch.setattr(int8, "import_without_telemetry", lambda *names: None)
    monkeypatch.setattr(Int8Cache, "read", lambda *place: (None, "checksum"))
    monkeypatch.setattr(int8, "start", fail)
    model = Model.open(shared_model_folder)
    assert falls_back(model, caplog, str(Int8Cache.of(model).place()), "unsupported operation")


def test_a_network_stays_until_its_next_version_is_whole(tmp_path):
    cache = Int8Cache(tmp_path, "a" * 64, (8, 16, 16))
    (cache.place() / "old").mkdir(parents=True)

    def stop(path):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.write(cache.place(), stop, 1, {"openvino": "", "nncf": ""})
    assert [path.name for path in cache.place().iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [cache.place()]


def test_scans_of_air_cannot_calibrate(shared_model_folder):
    air = Volume(np.full((64, 64, 64), -1024, np.int16), Grid((64, 64, 64), np.diag([6.0, 6.0, 6.0, 1.0])))
    with pytest.raises(ConfigError, match="air"):
        calibration_windows(Model.open(shared_model_folder), [air], FEW)


def test_networks_in_the_cache_are_quantised_again_on_request_alone(quantised, scan_path):
    places = sorted(Int8Cache.of(quantised).folder.iterdir())
    made = [place.stat().st_mtime_ns for place in places]
    quantise(quantised, [scan_path], FEW)
    assert [place.stat().st_mtime_ns for place in places] == made
    quantise(quantised, [scan_path], QuantiseConfig(windows=2, overwrite=True))
    assert [json.loads((place / RECORD).read_text())["windows"] for place in places] == [2] * len(places)


def test_the_command_writes_beside_the_model(model_folder, scan_path, vnni, extra, capsys):
    command = ["quantise", "-m", str(model_folder), "--scans", str(scan_path), "--windows", "1"]
    assert main(command) == 0
    assert f"{model_folder}.int8" in capsys.readouterr().out
    assert len(list(model_folder.with_name("model.int8").iterdir())) == 3


def test_telemetry_is_not_loaded(quantised):
    assert sys.modules["openvino_telemetry"] is None
    assert "openvino_telemetry.main" not in sys.modules
