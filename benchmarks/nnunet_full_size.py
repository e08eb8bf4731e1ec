"""What a network of TotalSegmentator's size costs: import, segmentation, a pack more. Weights are random.

    python benchmarks/nnunet_full_size.py FOLDER --scan CT [--updates 5] [--patch 112 112 128] [--organs 117]

The default is the size of TotalSegmentator's `fast`: 3 mm, windows of 112 x 112 x 128 voxels, six stages of
32 to 320 features, 117 organs. Time and memory do not depend on what the weights are.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from measured_process import CONSEG, Measured, run_measured

from continual_segment.lab.phantom.write import write_phantom
from continual_segment.model.nnunet import NnunetArchitecture
from continual_segment.model.nnunet.weights import expected_shapes
from continual_segment.organs import known_organs

FEATURES = (32, 64, 128, 256, 320, 320)
NAME = "nnUNetTrainer_4000epochs_NoMirroring__nnUNetPlans__3d_fullres"
SPACING_MM = 3.0


def write_model(folder: Path, patch: list[int], organs: int) -> Path:
    """A model folder as nnU-Net writes it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "fold_0").mkdir(parents=True)
    named = list(known_organs())[:organs]
    dataset = {
        "channel_names": {"0": "CT"},
        "labels": {"background": 0} | {organ.name: number for number, organ in enumerate(named, start=1)},
        "file_ending": ".nii.gz",
    }
    arguments = arch_arguments()
    (folder / "plans.json").write_text(json.dumps(plans(patch, arguments)))
    (folder / "dataset.json").write_text(json.dumps(dataset))
    sizes = {name: tuple(map(tuple, arguments[name])) for name in ("kernel_sizes", "strides")}
    architecture = NnunetArchitecture(
        "plain", FEATURES, sizes["kernel_sizes"], sizes["strides"], (2,) * 6, (2,) * 5, conv_bias=True
    )
    generator = torch.Generator().manual_seed(0)
    shapes = expected_shapes(architecture, len(named) + 1)
    weights = {name: torch.randn(shape, generator=generator) * 0.03 for name, shape in shapes.items()}
    checkpoint: dict[str, Any] = {
        "network_weights": weights,
        "init_args": {"configuration": "3d_fullres", "fold": 0},
        "trainer_name": NAME.partition("__")[0],
        "current_epoch": 4000,
        "inference_allowed_mirroring_axes": None,
    }
    torch.save(checkpoint, folder / "fold_0" / "checkpoint_final.pth")
    return folder


def arch_arguments() -> dict[str, Any]:
    return {
        "n_stages": 6,
        "features_per_stage": list(FEATURES),
        "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [[3, 3, 3]] * 6,
        "strides": [[1, 1, 1], *[[2, 2, 2]] * 4, [1, 1, 2]],
        "n_conv_per_stage": [2] * 6,
        "n_conv_per_stage_decoder": [2] * 5,
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    }


def plans(patch: list[int], arguments: dict[str, Any]) -> dict[str, Any]:
    resampling = {
        f"resampling_fn_{what}{ending}": value
        for what, order in (("data", 3), ("seg", 1), ("probabilities", 1))
        for ending, value in (
            ("", "resample_data_or_seg_to_shape"),
            ("_kwargs", {"is_seg": what == "seg", "order": order, "order_z": 0, "force_separate_z": None}),
        )
    }
    configuration = resampling | {
        "patch_size": patch,
        "spacing": [SPACING_MM] * 3,
        "normalization_schemes": ["CTNormalization"],
        "use_mask_for_norm": [False],
        "architecture": {
            "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": arguments,
        },
    }
    intensity = {"mean": -370.0, "std": 436.6, "percentile_00_5": -1024.0, "percentile_99_5": 276.0}
    return {
        "dataset_name": "Dataset297_RandomWeights",
        "plans_name": "nnUNetPlans",
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {"3d_fullres": configuration},
        "foreground_intensity_properties_per_channel": {"0": intensity},
    }


def show(what: str, taken: Measured) -> None:
    print(f"{what:<44}{taken.seconds:>8.1f} s{taken.peak_bytes / 1e6:>8.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scan", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--patch", type=int, nargs=3, default=[112, 112, 128])
    parser.add_argument("--organs", type=int, default=117)
    chosen = parser.parse_args()
    folder: Path = chosen.folder
    source, model = write_model(folder / NAME, chosen.patch, chosen.organs), folder / "model"
    for old in (model, folder / "model.runs", folder / "labels"):
        shutil.rmtree(old, ignore_errors=True)
    show("import", run_measured([*CONSEG, "import", source, "-m", model, "--name", "total", "--quiet"]))
    segment = [*CONSEG, "segment", chosen.scan, "-m", model, "-o", folder / "labels", "--quiet"]
    show("segment", run_measured(segment))
    raw = write_phantom(folder, "headneck", 6, 0, (SPACING_MM,) * 3, organs="demo", progress=False)
    prepared = folder / "prepared"
    show(
        "prepare 6 scans",
        run_measured([*CONSEG, "prepare", raw, "--model", model, "-o", prepared, "--quiet"]),
    )
    learn = [
        *CONSEG,
        "learn",
        prepared,
        "-m",
        model,
        "--iterations",
        chosen.updates,
        "--name",
        "neck",
        "--quiet",
    ]
    show(f"learn, {chosen.updates} updates", run_measured(learn))
    show("segment with both packs", run_measured([*segment, "--overwrite"]))


if __name__ == "__main__":
    main()
