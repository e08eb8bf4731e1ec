"""Engines that run the networks, behind one interface.

A backend takes a network in evaluation mode and returns a function with the same inputs and outputs. All
compute in float32 on a CPU; on CUDA, convolutions run in float16 (autocast), as in nnU-Net. Results of
different backends differ by rounding only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from platformdirs import user_cache_path
from torch import Tensor, nn

from continual_segment.errors import ConfigError
from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.networks.heads import ProjectionHead

BackendName = Literal["eager", "compiled", "openvino"]


class FlatEncoder(nn.Module):
    """The encoder with a tuple as output, which compilers require."""

    def __init__(self, encoder: GeneralEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, windows: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.encoder(windows))


class FlatDecoder(nn.Module):
    """A decoder that takes feature maps as separate arguments, on request without its last layer."""

    def __init__(self, decoder: Decoder | ProjectionHead, without_head: bool) -> None:
        super().__init__()
        self.decoder, self.without_head = decoder, without_head

    def forward(self, *features: Tensor) -> Tensor:
        return self.decoder.finest(features) if self.without_head else self.decoder(features)


def start_encoder(encoder: GeneralEncoder, backend: BackendName) -> Callable[[Tensor], Sequence[Tensor]]:
    """The encoder, ready to run."""
    return BACKENDS[backend](FlatEncoder(encoder))


def start_decoder(
    decoder: Decoder | ProjectionHead, without_head: bool, backend: BackendName
) -> Callable[[Sequence[Tensor]], Tensor]:
    """A decoder, ready to run: logits, or the finest features without its last layer."""
    run = BACKENDS[backend](FlatDecoder(decoder, without_head))
    return lambda features: run(*features)


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """float16 on CUDA, float32 elsewhere."""
    return torch.autocast("cuda", torch.float16) if device.type == "cuda" else nullcontext()


def eager(network: nn.Module) -> Callable[..., Any]:
    """Plain PyTorch."""
    return network


def compiled(network: nn.Module) -> Callable[..., Any]:
    """torch.compile with weights as constants; compiled networks are cached for the next run."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    return torch.compile(network, dynamic=False, options={"freezing": True})


def openvino(network: nn.Module) -> Callable[..., Any]:
    """Intel's OpenVINO in float32; compiled once for each input shape."""
    try:
        import openvino as ov
    except ImportError as error:
        raise ConfigError(
            "The backend 'openvino' needs OpenVINO, which is not installed. "
            "`pip install 'continual-segment[openvino]'` does that; --backend eager always works."
        ) from error
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(cache_folder() / "openvino")})
    compiled_for: dict[tuple[torch.Size, ...], Any] = {}

    def run(*inputs: Tensor) -> Any:
        shapes = tuple(each.shape for each in inputs)
        if shapes not in compiled_for:
            with torch.no_grad():
                converted = ov.convert_model(network, example_input=inputs, input=[list(s) for s in shapes])
            compiled_for[shapes] = core.compile_model(
                converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
            )
        found = compiled_for[shapes]([each.contiguous().numpy() for each in inputs])
        tensors = tuple(torch.from_numpy(found[i]) for i in range(len(found)))
        return tensors if len(tensors) > 1 else tensors[0]

    return run


def threads() -> int:
    """As many as PyTorch uses."""
    return torch.get_num_threads()


def cache_folder() -> Path:
    """Cache of compiled networks."""
    return user_cache_path("continual-segment", appauthor=False)


BACKENDS: dict[BackendName, Callable[[nn.Module], Callable[..., Any]]] = {
    "eager": eager,
    "compiled": compiled,
    "openvino": openvino,
}
