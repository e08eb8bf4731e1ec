"""Engines that run the networks, behind one interface.

A backend takes a network in evaluation mode and returns a function with the same inputs and outputs. All
compute in float32 on a CPU; on CUDA, convolutions run in float16 (autocast), as in nnU-Net. Results of
different backends differ by rounding only. `int8` is none of these: it runs quantised copies of the networks
(segmentation/int8.py). An Engine starts the networks of a model by either way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.networks.heads import ProjectionHead
from continual_segment.segmentation.openvino_runtime import (
    Run,
    cache_folder,
    convert,
    import_without_telemetry,
    start,
)
from continual_segment.segmentation.predictions import PackProfile

FloatBackend = Literal["eager", "compiled", "openvino"]
BackendName = Literal["eager", "compiled", "openvino", "int8"]
Encode = Callable[[Tensor], Sequence[Tensor]]
Decode = Callable[[Sequence[Tensor]], Tensor]


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


def start_encoder(encoder: GeneralEncoder, backend: FloatBackend) -> Encode:
    """The encoder, ready to run."""
    return BACKENDS[backend](FlatEncoder(encoder))


def start_decoder(decoder: Decoder | ProjectionHead, without_head: bool, backend: FloatBackend) -> Decode:
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
    ov = import_without_telemetry("openvino", "openvino")
    started: dict[tuple[torch.Size, ...], Run] = {}

    def run(*inputs: Tensor) -> Any:
        shapes = tuple(each.shape for each in inputs)
        if shapes not in started:
            started[shapes] = start(ov, convert(ov, network, inputs))
        found = started[shapes](*inputs)
        return found if len(found) > 1 else found[0]

    return run


BACKENDS: dict[FloatBackend, Callable[[nn.Module], Callable[..., Any]]] = {
    "eager": eager,
    "compiled": compiled,
    "openvino": openvino,
}
"""Backends that compute in float32. int8 runs other networks: segmentation/int8.py."""
BACKEND_NAMES: tuple[BackendName, ...] = get_args(BackendName)


class Engine(Protocol):
    """Starts the networks of one model."""

    @property
    def backend(self) -> BackendName: ...

    @property
    def quantised(self) -> Mapping[str, str]:
        """Checksums of the int8 networks that take the place of the model's, by pack or "encoder"."""
        ...

    def encoder(self, encoder: GeneralEncoder) -> Encode: ...

    def decoder(self, decoder: Decoder | ProjectionHead, without_head: bool, profile: PackProfile) -> Decode:
        """`profile` identifies the pack that the decoder belongs to."""
        ...


@dataclass(frozen=True)
class FloatEngine:
    """Runs the networks as they are stored."""

    backend: FloatBackend = "eager"
    quantised: Mapping[str, str] = field(default_factory=dict, init=False)

    def encoder(self, encoder: GeneralEncoder) -> Encode:
        return start_encoder(encoder, self.backend)

    def decoder(self, decoder: Decoder | ProjectionHead, without_head: bool, profile: PackProfile) -> Decode:
        return start_decoder(decoder, without_head, self.backend)


EAGER = FloatEngine()
