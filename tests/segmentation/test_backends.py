"""Whatever computes the networks, results are the same up to rounding."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from continual_segment.errors import ConfigError
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder
from continual_segment.segmentation import SegmentConfig, backends
from continual_segment.segmentation.backends import BACKENDS, precision, start_decoder, start_encoder


@pytest.mark.parametrize(
    ("without_head", "plan"), [(False, ("2d", "3d")), (True, ("2d", "3d")), (False, ("nnunet@3", "p3d@2"))]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_what_pytorch_gives(backend, without_head, plan, preset, monkeypatch, tmp_path):
    if backend == "openvino" and not find_spec("openvino"):  # importing it would load its telemetry
        pytest.skip("the extra 'openvino' is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if backend == "compiled":  # traced, without the minutes of a C++ compiler
        whole = torch.compile
        monkeypatch.setattr(
            torch, "compile", lambda network, dynamic, options: whole(network, backend="eager")
        )
    torch.manual_seed(0)
    encoder = GeneralEncoder(preset.network).freeze()
    decoder = Decoder(preset.network, DecoderPlan(plan), 5).eval().requires_grad_(False)
    encode, decode = start_encoder(encoder, backend), start_decoder(decoder, without_head, backend)
    for windows in (torch.rand(2, 1, 8, 16, 16), torch.rand(1, 1, 8, 16, 16)):
        with torch.no_grad():
            features = encoder(windows)
            expected = decoder.finest(features) if without_head else decoder(features)
            found = decode(encode(windows))
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_gpu_computes_in_half_precision_and_a_cpu_does_not():
    with precision(torch.device("cpu")):
        assert not torch.is_autocast_enabled("cpu")
    assert precision(torch.device("cuda")).fast_dtype == torch.float16


def test_a_missing_extra_gets_a_sentence(monkeypatch, preset):
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[openvino\]'"):
        start_encoder(GeneralEncoder(preset.network), "openvino")


def test_compiled_networks_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert backends.cache_folder() == tmp_path / "continual-segment"


@pytest.mark.parametrize("wrong", [{"backend": "tensorrt"}, {"backend": "openvino", "device": "cuda"}])
def test_a_backend_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="backend"):
        SegmentConfig(**wrong)
