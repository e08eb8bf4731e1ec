"""What computes the networks: one interface, several engines.

A backend takes a network in evaluation mode and gives back a function with the same inputs and outputs. All
compute in float32 on a CPU; on CUDA convolutions run in float16 (autocast), as nnU-Net does. Results differ
between backends by rounding alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from continual_segment.errors import ConfigError
from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.networks.heads import ProjectionHead

BackendName = Literal["eager", "compiled", "openvino"]
Encode = Callable[[Tensor], Sequence[Tensor]]
Decode = Callable[[Sequence[Tensor]], Tensor]


class FlatEncoder(nn.Module):
    """The encoder with a tuple as output, as compilers want it."""

    def __init__(self, encoder: GeneralEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, windows: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.encoder(windows))


class FlatDecoder(nn.Module):
    """A decoder that takes the feature maps one by one and stops before its last layer where told to."""

    def __init__(self, decoder: Decoder | ProjectionHead, without_head: bool) -> None:
        super().__init__()
        self.decoder, self.without_head = decoder, without_head

    def forward(self, *features: Tensor) -> Tensor:
        return self.decoder.finest(features) if self.without_head else self.decoder(features)


def start_encoder(encoder: GeneralEncoder, backend: BackendName) -> Encode:
    """The encoder, ready to run."""
    return BACKENDS[backend](FlatEncoder(encoder))


def start_decoder(decoder: Decoder | ProjectionHead, without_head: bool, backend: BackendName) -> Decode:
    """A decoder, ready to run: logits, or the finest features without its last layer."""
    run = BACKENDS[backend](FlatDecoder(decoder, without_head))
    return lambda features: run(*features)


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """float16 where a GPU is made for it, float32 elsewhere."""
    return torch.autocast("cuda", torch.float16) if device.type == "cuda" else nullcontext()


def eager(network: nn.Module) -> Callable[..., Any]:
    """PyTorch as it is."""
    return network


def compiled(network: nn.Module) -> Callable[..., Any]:
    """torch.compile with weights as constants. What it makes is kept for the next run."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    return torch.compile(network, dynamic=False, options={"freezing": True})


def openvino(network: nn.Module) -> Callable[..., Any]:
    """Intel's OpenVINO in float32; made for each size of input when it is first seen."""
    try:
        import openvino as ov
    except ImportError as error:
        raise ConfigError(
            "The backend 'openvino' needs OpenVINO, which is not installed. "
            "`pip install 'continual-segment[openvino]'` does that; --backend eager always works."
        ) from error
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(cache_folder() / "openvino")})
    made: dict[tuple[torch.Size, ...], Any] = {}

    def run(*inputs: Tensor) -> Any:
        shapes = tuple(each.shape for each in inputs)
        if shapes not in made:
            with torch.no_grad():
                converted = ov.convert_model(network, example_input=inputs, input=[list(s) for s in shapes])
            made[shapes] = core.compile_model(
                converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
            )
        found = made[shapes]([each.contiguous().numpy() for each in inputs])
        tensors = tuple(torch.from_numpy(found[i]) for i in range(len(found)))
        return tensors if len(tensors) > 1 else tensors[0]

    return run


def threads() -> int:
    """As many as PyTorch takes."""
    return torch.get_num_threads()


def cache_folder() -> Path:
    """Where compiled networks are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "continual-segment"


BACKENDS: dict[BackendName, Callable[[nn.Module], Callable[..., Any]]] = {
    "eager": eager,
    "compiled": compiled,
    "openvino": openvino,
}
