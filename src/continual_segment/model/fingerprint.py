"""Fingerprints: of weights, and of what they answer on a probe volume.

Weights are compared as bytes. Outputs are compared on a made-up volume, so that no patient data is needed, in
one thread, so that the order of additions is fixed. Another processor, torch build or version of our layers
may still round differently; there the outputs are compared with a tolerance instead and `verify` notes it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from continual_segment.networks import Decoder, GeneralEncoder

LAYERS = 2
"""Goes up whenever networks/layers.py computes the same with other rounding."""
PROBE_SEED = 143
SAMPLED_VOXELS = 64


def fingerprint_tensors(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fingerprint_data(data: Any) -> str:
    """sha256 of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def environment() -> str:
    """Where bit-equal outputs can be expected."""
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return f"torch {torch.__version__}, {machine}, layers {LAYERS}"


def probe_window(encoder: GeneralEncoder) -> Tensor:
    """A made-up window of blobs, the smallest that keeps two voxels a side at the bottom of the network."""
    shape, channels = (
        tuple(2 * stride for stride in encoder.config.total_stride),
        encoder.config.input_channels,
    )
    coarse = np.random.default_rng(PROBE_SEED).uniform(-1, 1, (1, channels, 4, 4, 4)).astype(np.float32)
    return torch.nn.functional.interpolate(torch.from_numpy(coarse), size=shape, mode="trilinear")


@torch.no_grad()
def probe_logits(encoder: GeneralEncoder, decoder: Decoder) -> Tensor:
    """What the decoder answers on the probe (organ, z, y, x), on the CPU; both return to their devices."""
    places = [(network, next(network.parameters()).device) for network in (encoder, decoder)]
    try:
        with one_thread():
            return decoder.cpu().eval()(encoder.cpu().eval()(probe_window(encoder)))[0]
    finally:
        for network, device in places:
            network.to(device)


def sampled(logits: Tensor) -> Tensor:
    """A few voxels of the probe's logits (organ, voxel), for comparison across machines."""
    flat = logits.flatten(1)
    return flat[:, torch.linspace(0, flat.shape[1] - 1, SAMPLED_VOXELS).long()].contiguous()


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
