"""What the `paper` preset costs on one large GPU: operations, memory, disk and hours, by counting.

    python benchmarks/paper_cost.py [--tflops 40] [--prepared FOLDER] [--patch-seconds 0.058]

Operations of one update are counted by PyTorch on networks without memory (device meta), forward and
backward; so are the bytes that the backward pass has to keep. Bytes on disk per voxel are measured in a
prepared dataset. What cannot be counted here is given: how many operations a GPU sustains in 3D convolutions
(--tflops; half of it is printed as well), the size of a scan (--voxels, by default that of a TotalSegmentator
scan at 1.5 mm, roughly), and how long one core needs for one augmented patch (benchmarks/feeding.py). No GPU
was used.
"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from continual_segment.config import ExperimentConfig, load_preset
from continual_segment.data.prepared import PreparedDataset
from continual_segment.networks import Decoder, DecoderPlan

SCANS, ORGANS = 1228, 104
"""Of TotalSegmentator v1."""
ITS_SPACING_MM = (1.5, 1.5, 1.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--tflops", type=float, default=40.0, help="10^12 operations that a GPU sustains")
    parser.add_argument("--voxels", type=float, default=18e6, help="of a scan at 1.5 mm, on average")
    parser.add_argument("--prepared", type=Path, help="a prepared dataset, for bytes per voxel")
    parser.add_argument("--patch-seconds", type=float, default=0.058, help="of one core for a patch")
    args = parser.parse_args()
    config = load_preset(args.preset)
    for title, frozen, updates in (
        ("first step", False, config.first.iterations),
        ("later step", True, config.later.iterations),
    ):
        operations, kept = update_cost(config, frozen)
        hours = updates * operations / (args.tflops * 1e12) / 3600
        patches = config.patches.batch * updates / hours / 3600
        print(f"{title}: {updates} updates of {operations / 1e12:.2f} x 10^12 operations")
        print(f"  kept for the backward pass in float16: {kept / 2**30:.1f} GiB")
        print(f"  hours at {args.tflops:g} TFLOP/s: {hours:.0f}; at half of that: {2 * hours:.0f}")
        print(
            f"  patches per second: {patches:.1f}, for which {patches * args.patch_seconds:.1f} cores augment"
        )
    voxels = args.voxels * prod(ITS_SPACING_MM) / prod(config.prepare.spacing_mm)
    print(f"a prepared scan: {voxels / 1e6:.0f} million voxels")
    if args.prepared:
        per_voxel = bytes_per_voxel(PreparedDataset.open(args.prepared))
        disk = SCANS * voxels * per_voxel
        print(f"bytes per voxel: {per_voxel:.2f}; {SCANS} scans: {disk / 2**30:.0f} GiB")


def update_cost(config: ExperimentConfig, frozen: bool) -> tuple[int, int]:
    """Operations of one update, and bytes that are kept from its forward pass in half precision."""
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        if not isinstance(tensor, torch.nn.Parameter):
            kept += 2 * tensor.numel()
        return tensor

    with torch.device("meta"):
        encoder = config.network.build_encoder()
        decoder = Decoder(config.network, DecoderPlan.nnunet(config.network), ORGANS)
        images = torch.empty(config.patches.batch, 1, *config.patches.size)
        with FlopCounterMode(display=False) as counter:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                with torch.set_grad_enabled(not frozen):
                    features = encoder(images)
                outputs = decoder.forward_supervised(features)
            torch.stack([output.float().mean() for output in outputs]).sum().backward()
    return counter.get_total_flops(), kept


def bytes_per_voxel(dataset: PreparedDataset) -> float:
    """Of scan and labels together, as they are stored."""
    files = [path for path in dataset.folder.rglob("*") if path.is_file()]
    voxels = sum(prod(dataset.case(name).shape) for name in dataset.splits)
    return sum(path.stat().st_size for path in files) / voxels


if __name__ == "__main__":
    main()
