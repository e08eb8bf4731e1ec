"""Scans and models of any size with random but fixed weights, for benchmarks of speed and memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

CUBE, FLAT, WHOLE, HALF = (3, 3, 3), (1, 3, 3), (1, 1, 1), (2, 2, 2)
NETWORKS: dict[str, dict[str, Any]] = {
    "paper": {
        "features": (32, 64, 128, 256, 320, 320),
        "kernels": (FLAT, FLAT, CUBE, CUBE, CUBE, CUBE),
        "strides": (WHOLE, (1, 2, 2), (1, 2, 2), HALF, HALF, HALF),
    },
    "laptop": {"features": (16, 32, 64, 96), "kernels": (CUBE,) * 4, "strides": (WHOLE, HALF, HALF, HALF)},
    # as many features at full resolution as the paper's, so the same accumulators, but hardly any work
    "light": {
        "features": (32, 8),
        "kernels": (WHOLE, WHOLE),
        "strides": (WHOLE, (4, 4, 4)),
        "convs_per_stage": 1,
    },
}
SPLIT = (103, 26, 13, 1)
"""Organs of the paper's four steps, about: shares of the organs asked for."""


def organ_counts(organs: int, packs: int) -> list[int]:
    """How many organs each pack has."""
    shares = np.array(SPLIT[:packs], float)
    counts = np.maximum(1, np.floor(organs * shares / shares.sum())).astype(int)
    counts[0] += organs - counts.sum()
    return counts.tolist()


def kernels(plan: str, blocks: int) -> tuple[str, ...]:
    """Kernels of a decoder's blocks, deepest first; fewer names than blocks are spread over them."""
    names = plan.split(",")
    return tuple(names[number * len(names) // blocks] for number in range(blocks))


def make_model(
    folder: Path,
    network: str,
    organs: int,
    packs: int,
    window: tuple[int, int, int],
    spacing_mm: tuple[float, float, float],
    plans: Sequence[str] = ("nnunet",),
    imported: bool = False,
) -> Path:
    """A model folder; `plans` of its packs, or one for all, as `kernels` takes them.

    An `imported` model prepares scans and sums logits as nnU-Net does.
    """
    import torch

    from continual_segment.data.intensity import Intensity
    from continual_segment.data.prepare_config import NnunetPreparation, PrepareConfig
    from continual_segment.model import Model, OrganPack
    from continual_segment.model.model import encoder_fingerprint
    from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
    from continual_segment.organs import find_organ

    torch.manual_seed(0)
    config = NetworkConfig(**NETWORKS[network])
    prepare = PrepareConfig(spacing_mm)
    if imported:
        ct = Intensity("ct-percentiles", (-1000.0, 300.0), 0.0, 400.0, padding="zero")
        prepare = PrepareConfig(spacing_mm, ct, NnunetPreparation())
    encoder = GeneralEncoder(config).freeze()
    fingerprint = encoder_fingerprint(encoder, prepare)
    made, first = [], 0
    for number, (count, plan) in enumerate(zip(organ_counts(organs, packs), cycle(plans), strict=False)):
        shape = DecoderPlan(kernels(plan, len(config.features) - 1))  # type: ignore[arg-type]
        named = tuple(find_organ(f"made_up_{first + i}") for i in range(count))
        decoder = Decoder(config, shape, count).eval()
        decoder.head.weight.data *= 4  # labels that differ from voxel to voxel little, but do
        made.append(OrganPack.of(f"pack{number}", named, encoder, decoder, fingerprint))
        first += count
    model = Model.create(folder, encoder, prepare, window, made[0])
    for pack in made[1:]:
        model = model.add(pack)
    return folder


def make_scan(path: Path, shape: tuple[int, int, int], spacing_mm: tuple[float, float, float]) -> Path:
    """A body of soft tissue with two lungs, a spine and noise, in air; (z, y, x)."""
    from continual_segment.files import write_scan
    from continual_segment.volume import Grid, Volume

    rng = np.random.default_rng(0)
    y, x = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in shape[1:]), indexing="ij")
    plane = np.where((y / 0.62) ** 2 + (x / 0.85) ** 2 < 1, 40, -1000).astype(np.float32)
    for side in (-0.35, 0.35):
        plane[(y / 0.4) ** 2 + ((x - side) / 0.25) ** 2 < 1] = -850
    plane[(y + 0.45) ** 2 + x**2 < 0.01] = 400
    noise = rng.normal(0, 15, (4, *shape[1:])).astype(np.float32)
    voxels = np.empty(shape, np.int16)
    for z in range(shape[0]):
        voxels[z] = plane + noise[z % 4] + 10 * np.sin(z / 7)
    write_scan(path, Volume(voxels, Grid(shape, np.diag([*spacing_mm[::-1], 1.0]))))
    return path
