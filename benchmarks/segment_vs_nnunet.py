"""Whole scans, ours against stock nnU-Net v2: time, memory, share of the machine's peak, agreement.

    python benchmarks/segment_vs_nnunet.py                              # small: minutes
    python benchmarks/segment_vs_nnunet.py --network paper --slices 96 200 --rounds 3
    python benchmarks/segment_vs_nnunet.py --network paper --slices 400 800 --ours-only

Both go from a scan on disk to a label map on the scan's own grid, each in fresh processes, in turn. nnU-Net
is its own predictor in its own virtual environment (made on first use, see --venv): same plan, same patch,
same step, no mirroring. Lines:

  stock         nnU-Net with --stock-organs classes, as installed
  stock, tuned  the same with glibc keeping freed memory and torch.compile
  ours, 1 pack  the same network and weights, windows where nnU-Net has them and weighted as it does
  ours          --packs packs with --organs organs in all, every decoder everywhere
  ours, skip    the same, packs run only in the body parts they cover: a scan from neck to pelvis

Ours is measured by each of --backends; `int8` quantises the models first, which does not count.

`x` is the stock line's seconds over a line's, round by round: median (least, most). `of peak FLOPS` are the
operations of the networks on the windows that really ran, per second, over those of a large matrix product.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_up import NETWORKS, make_model, make_scan
from measured_process import CONSEG
from nnunet_venv import KEPT, nnunet_python, run

from continual_segment.malloc import TUNABLES, with_malloc_settings

HERE = Path(__file__).parent
SIZES = {  # window and spacing of each network
    "paper": ((64, 128, 128), (3.0, 0.75, 0.75)),
    "laptop": ((32, 32, 48), (6.0, 6.0, 6.0)),
}
ONE_DECODER = (
    "projection,projection,2d,2d,projection",
    *("projection,projection,2d,projection,projection",) * 3,
)
"""Kernels of four packs of the paper's network that need 1.00 of the multiply-adds of one nnU-Net decoder.
Search and pruning by cost reach 0.99 at laptop size: results/small_packs."""
WINDOWS_TO_CALIBRATE = 4
"""Of int8; weights are random, so Dice is no concern."""
COVERAGE = ({}, {"chest": 1.0}, {"head_neck": 1.0}, {"chest": 1.0, "head_neck": 0.5})
"""Of the packs: the first knows the whole body."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SIZES, default="laptop")
    parser.add_argument("--slices", type=int, nargs="+", default=[96])
    parser.add_argument("--pixels", type=int, help="rows and columns (default: 512 for paper, 128 else)")
    parser.add_argument("--spacing-mm", type=float, nargs=3, metavar=("Z", "Y", "X"), help="of the scan")
    parser.add_argument("--organs", type=int, default=143)
    parser.add_argument("--packs", type=int, choices=range(1, 5), default=4)
    parser.add_argument(
        "--plans",
        nargs="+",
        default=ONE_DECODER,
        metavar="PLAN",
        help="kernels of each pack, or of all: names for its blocks, deepest first, with commas between "
        "(default: four decoders that need the multiply-adds of one of nnU-Net's)",
    )
    parser.add_argument("--stock-organs", type=int, default=104)
    parser.add_argument("--backends", nargs="+", default=["eager"], help="ours, each by these")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of torch (default: torch's own)")
    parser.add_argument("--ours-only", action="store_true", help="where stock does not fit into memory")
    parser.add_argument(
        "--trained",
        type=Path,
        nargs=2,
        metavar=("MODEL", "SCAN"),
        help="a trained model of one pack, and a scan (.nii.gz), in place of made-up ones: for agreement",
    )
    parser.add_argument("--tuned", action="store_true", help="also stock with our settings")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache/continual-segment/nnunet-venv")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*map(Path, args.measure[:3]), *args.measure[3:], args.threads)))
        return
    args.pixels = args.pixels or (512 if args.network == "paper" else 128)
    with tempfile.TemporaryDirectory() as folder:
        for slices in args.slices:
            compare(Path(folder) / str(slices), slices, args)


def compare(folder: Path, slices: int, args: argparse.Namespace) -> None:
    """One table."""
    folder.mkdir()
    window, spacing = SIZES[args.network]
    scan, shape = folder / "scan_0000.nii.gz", (slices, args.pixels, args.pixels)
    if args.trained:
        shutil.copy(args.trained[1], scan)
    else:
        of_scan = args.spacing_mm or (spacing[0], spacing[1] * 1.1, spacing[2] * 1.1)
        make_scan(scan, shape, tuple(of_scan))  # type: ignore[arg-type]
    ours = make_model(folder / "ours", args.network, args.organs, args.packs, window, spacing, args.plans)
    if args.trained:
        same = args.trained[0]
    else:
        same = make_model(folder / "same", args.network, args.stock_organs, 1, window, spacing)
    if "int8" in args.backends:
        for model in dict.fromkeys((same, ours)):
            quantise(model, scan)
    lines = make_lines(folder, scan, ours, same, args)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in lines}
    for _ in range(args.rounds):
        for name, start in lines.items():
            found[name].append(start())
    print(f"\n{args.trained[1] if args.trained else ' x '.join(map(str, shape))}, network {args.network}")
    print(f"{'':28} {'seconds':>9} {'x':>20} {'peak GiB':>9} {'of peak FLOPS':>14}")
    for name, runs in found.items():
        print(line(name, runs, found.get("stock")), flush=True)
    if not args.ours_only:
        print(f"labels of 'ours, 1 pack' that equal stock's: {agreement(folder, same):.5f}")


def quantise(model: Path, scan: Path) -> None:
    """Calibrated on the scan itself, which is all that the networks ever see."""
    words = ("quantise", "-m", model, "--scans", scan, "--windows", WINDOWS_TO_CALIBRATE, "--quiet")
    subprocess.run([*CONSEG, *map(str, words)], check=True)


def make_lines(
    folder: Path, scan: Path, ours: Path, same: Path, args: argparse.Namespace
) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured, by name."""
    lines: dict[str, Callable[[], dict[str, Any]]] = {}
    if not args.ours_only:
        python = nnunet_python(args.venv)
        described = describe_for_nnunet(folder, same, args)
        command = [
            python,
            HERE / "nnunet_predict.py",
            *described,
            scan,
            folder / "stock.nii.gz",
            args.threads,
        ]
        lines["stock"] = lambda: run(command)
        if args.tuned:
            lines["stock, tuned"] = lambda: run(command, KEPT | {"nnUNet_compile": "1"})

    def ours_line(model: Path, out: str, backend: str, skip: str) -> Callable[[], dict[str, Any]]:
        options = ["--network", args.network, "--threads", args.threads]
        measured = ["--measure", scan, model, folder / out, backend, skip]
        return lambda: run(
            [sys.executable, __file__, *options, *measured], {TUNABLES: with_malloc_settings()}
        )

    for backend in args.backends:
        if not args.ours_only:
            lines[f"ours, 1 pack, {backend}"] = ours_line(same, "same.nii.gz", backend, "same")
        lines[f"ours, {args.packs} packs, {backend}"] = ours_line(ours, "ours.nii.gz", backend, "")
        if args.packs > 1:
            lines[f"ours, skip, {backend}"] = ours_line(ours, "skip.nii.gz", backend, "skip")
    return lines


def line(name: str, runs: list[dict[str, Any]], stock: list[dict[str, Any]] | None) -> str:
    ratios = [s["wall"] / r["wall"] for s, r in zip(stock or [], runs, strict=False)]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})" if ratios else ""
    seconds = statistics.median(each["wall"] for each in runs)
    peak = max(each["peak"] for each in runs) / 2**30
    share = f"{100 * runs[0]['share']:13.0f}%" if "share" in runs[0] else ""
    return f"{name:28} {seconds:9.1f} {spread:>20} {peak:9.2f} {share}"


def measure(scan: Path, model: Path, out: Path, backend: str, how: str, threads: int) -> dict[str, float]:
    """Ours, in this process."""
    import torch

    from continual_segment.files import read_scan, write_labels
    from continual_segment.malloc import keep_freed_memory
    from continual_segment.model import Model
    from continual_segment.segmentation import SegmentConfig, Segmenter

    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    if how == "same":
        use_nnunet_windows()
    begun = time.perf_counter()
    opened = Model.open(model)
    segmenter = Segmenter(opened, config=SegmentConfig(backend=backend, progress=False))  # type: ignore[arg-type]
    windows = count_runs(segmenter)
    volume = read_scan(scan)
    context = neck_to_pelvis(segmenter, volume.grid.shape[0]) if how == "skip" else None
    write_labels(out, segmenter(volume, context=context).labels)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "peak": peak, "share": work(opened, windows()) / seconds / machine_peak()}


def use_nnunet_windows() -> None:
    """Windows over the whole scan, where nnU-Net has them and weighted as it does, from now on."""
    from continual_segment.segmentation import prepared_scan
    from continual_segment.segmentation.nnunet_inference import NNUNET_TILING
    from continual_segment.segmentation.padded_scan import WHOLE

    prepared_scan.body_box = lambda scan, window: WHOLE
    prepared_scan.ResampledScan.tiling = NNUNET_TILING


def neck_to_pelvis(segmenter: Any, slices: int) -> Any:
    """Body parts of the slices: a sixth hip, two sixths each abdomen and chest, a sixth neck."""
    from dataclasses import replace

    import numpy as np

    from continual_segment.organs import BODY_PARTS
    from continual_segment.segmentation import ScanContext

    for pack, coverage in zip(segmenter.packs, COVERAGE, strict=False):
        pack.profile = replace(pack.profile, coverage=coverage)
    parts = [BODY_PARTS.index(name) for name in ("hip_thigh", "abdomen", "chest", "head_neck")]
    return ScanContext.of(np.repeat(parts, [slices // 6, slices // 3, slices // 3, slices])[:slices])


class Counted:
    """A network, and how many windows it was run on."""

    def __init__(self, network: Callable[[Any], Any], count: Callable[[Any], int]) -> None:
        self.network, self.count, self.windows = network, count, 0

    def __call__(self, given: Any) -> Any:
        self.windows += self.count(given)
        return self.network(given)


def count_runs(segmenter: Any) -> Callable[[], dict[str, int]]:
    """Count the windows that really run from now on: of the encoder (called "") and of each pack by its name.

    Windows beside the body, windows of air and packs out of their body parts do not run.
    """
    counted = {"": Counted(segmenter.encode, len)}
    segmenter.encode = counted[""]
    for pack in segmenter.packs:
        pack.decode = counted[pack.profile.name] = Counted(pack.decode, lambda features: len(features[0]))
    return lambda: {name: network.windows for name, network in counted.items()}


def work(model: Any, windows: dict[str, int]) -> float:
    """Floating point operations of the encoder and the packs on as many windows as each was run on."""
    import torch

    from continual_segment.networks import Decoder, GeneralEncoder

    with torch.device("meta"):
        encoder, window = GeneralEncoder(model.network), torch.empty(1, 1, *model.window)
        total = windows[""] * operations(lambda: encoder(window))
        features = encoder(window)
        for name in model.pack_names:
            pack = model.pack(name)
            decoder = Decoder(pack.network, pack.plan, len(pack.organs))
            total += windows[name] * operations(lambda decoder=decoder: decoder.finest(features))  # type: ignore[misc]
    return total


def operations(run: Callable[[], Any]) -> int:
    """Floating point operations of one call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def machine_peak() -> float:
    """Floating point operations a second of a large matrix product on all threads."""
    import torch

    a = torch.rand(3000, 3000)
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begun)
    return 2 * 3000**3 / min(times)


def describe_for_nnunet(folder: Path, model: Path, args: argparse.Namespace) -> list[Path]:
    """plans.json, dataset.json and the weights of a model with one pack, for nnU-Net."""
    import torch

    from continual_segment.model import Model

    opened = Model.open(model)
    (name,) = opened.pack_names
    weights = {f"encoder.{key}": value for key, value in opened.load_encoder().state_dict().items()}
    weights |= {f"decoder.{key}": value for key, value in opened.pack(name).weights.items()}
    torch.save(weights, folder / "weights.pt")
    window, spacing = SIZES[args.network]
    (folder / "plans.json").write_text(json.dumps(plans(NETWORKS[args.network], window, spacing)))
    organs = len(opened.pack(name).organs)
    labels = {"background": 0} | {f"organ{i}": i for i in range(1, organs + 1)}
    dataset = {"channel_names": {"0": "CT"}, "labels": labels, "numTraining": 1, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(dataset))
    return [folder / "plans.json", folder / "dataset.json", folder / "weights.pt"]


def plans(network: dict[str, Any], window: tuple[int, ...], spacing: tuple[float, ...]) -> dict[str, Any]:
    """nnU-Net's plan of the same network; its normalisation maps -1024..1024 HU to -1..1 as ours does."""
    stages = len(network["features"])
    linear = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}
    resample = "resample_data_or_seg_to_shape"
    configuration = {
        "data_identifier": "made_up",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": window,
        "median_image_size_in_voxels": window,
        "spacing": spacing,
        "normalization_schemes": ["CTNormalization"],
        "use_mask_for_norm": [False],
        "resampling_fn_data": resample,
        "resampling_fn_data_kwargs": linear | {"order": 3},
        "resampling_fn_seg": resample,
        "resampling_fn_seg_kwargs": linear | {"is_seg": True},
        "resampling_fn_probabilities": resample,
        "resampling_fn_probabilities_kwargs": linear,
        "batch_dice": True,
        "architecture": {
            "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": {
                "n_stages": stages,
                "features_per_stage": network["features"],
                "conv_op": "torch.nn.modules.conv.Conv3d",
                "kernel_sizes": network["kernels"],
                "strides": network["strides"],
                "n_conv_per_stage": [2] * stages,
                "n_conv_per_stage_decoder": [2] * (stages - 1),
                "conv_bias": True,
                "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
                "norm_op_kwargs": {"eps": 1e-5, "affine": True},
                "dropout_op": None,
                "dropout_op_kwargs": None,
                "nonlin": "torch.nn.LeakyReLU",
                "nonlin_kwargs": {"inplace": True},
            },
            "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
        },
    }
    ct = {
        "percentile_00_5": -1024,
        "percentile_99_5": 1024,
        "mean": 0,
        "std": 1024,
        "median": 0,
        "min": -1024,
        "max": 1024,
    }
    return {
        "dataset_name": "Dataset999_made_up",
        "plans_name": "nnUNetPlans",
        "original_median_spacing_after_transp": spacing,
        "original_median_shape_after_transp": window,
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {"3d_fullres": configuration},
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {"0": ct},
    }


def agreement(folder: Path, model: Path) -> float:
    """Share of voxels with one label by stock nnU-Net and by ours with the same network."""
    import numpy as np

    from continual_segment.files import read_labels
    from continual_segment.model import Model

    opened = Model.open(model)
    (name,) = opened.pack_names
    ids = [organ.id for organ in opened.pack(name).organs]
    stock, ours = (read_labels(folder / name) for name in ("stock.nii.gz", "same.nii.gz"))
    return float(np.mean(np.array([0, *ids])[stock.voxels] == ours.voxels))


if __name__ == "__main__":
    main()
