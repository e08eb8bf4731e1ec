"""`conseg bodyparts`: the body part of every slice of a scan."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import add_device, add_quiet, check_device, model_argument, show

if TYPE_CHECKING:
    from continual_segment.body_parts import Regions

log = logging.getLogger(__name__)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "bodyparts",
        help="find hip and thigh, abdomen, chest, head and neck in a scan",
        description="Print the slices of every body part in a scan: hip_thigh, abdomen, chest and head_neck, "
        "which meet at the lower end-plates of L5, T11 and T2. Where the scan is too short, its slices are "
        "too far apart or it does not look like a body, the result is unknown. With --learn, make the "
        "regressor that finds them: from the scans of prepared datasets alone, in minutes on one core; "
        "vertebra labels, where a dataset has them, only calibrate its scores.",
        epilog="examples:\n"
        "  conseg bodyparts PREPARED --learn -m body_parts.safetensors\n"
        "  conseg bodyparts ct.nii.gz -m body_parts.safetensors",
    )
    parser.add_argument(
        "source", type=Path, nargs="+", metavar="SCAN", help="NIfTI files; with --learn, prepared datasets"
    )
    parser.add_argument(
        "-m",
        "--model",
        type=model_argument,
        required=True,
        metavar="MODEL_OR_FILE",
        help="a model folder with body_parts.safetensors in it, or such a file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--learn", action="store_true", help="make the file instead of reading it")
    parser.add_argument("--iterations", type=int, metavar="N", help="with --learn: updates (default: 1000)")
    parser.add_argument("--seed", type=int, metavar="S", help="with --learn (default: 0)")
    add_device(parser, default="cpu")
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return run_learn(args) if args.learn else run_show(args)


def run_show(args: argparse.Namespace) -> int:
    import json

    from continual_segment.body_parts import BodyPartRegressor
    from continual_segment.files import read_scan

    regressor = BodyPartRegressor.read(args.model)
    found = {str(path): regressor.regions(read_scan(path)) for path in args.source}
    if args.json:
        print(json.dumps({path: regions.as_data() for path, regions in found.items()}, indent=1))
        return 0
    for path, regions in found.items():
        print("\n".join([path, *lines(regions)]))
    return 0


def lines(regions: Regions) -> list[str]:
    """The body parts of a scan, head first, with slices and millimetres along the patient."""
    from continual_segment.body_parts.regions import height_mm

    lines = []
    for name, (first, end) in reversed(regions.slices.items()):
        low, high = sorted(height_mm(regions.grid, edge - 0.5) for edge in (first, end))
        lines.append(f"  {name:<10} slices {first:>4} to {end - 1:<4} z {low:8.1f} to {high:8.1f} mm")
    unknown = int((regions.body_part < 0).sum())
    if unknown:
        lines.append(f"  {'unknown':<10} {unknown} of {len(regions.body_part)} slices")
    if regions.reversed:
        lines.append("  The slices run from head to foot.")
    return [*lines, *(f"  {reason}" for reason in regions.reasons)]


def run_learn(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from continual_segment.body_parts import BodyPartConfig, learn_body_parts
    from continual_segment.body_parts.regressor import FILE
    from continual_segment.data.prepared import PreparedDataset
    from continual_segment.errors import ConfigError, ModelError
    from continual_segment.learning.step import run_folder
    from continual_segment.model import Model
    from continual_segment.model.starter import refuse_starter

    refuse_starter(args.model)
    model = Model.open(args.model) if args.model.is_dir() else None
    target = args.model / FILE if model else args.model
    if target.exists():
        raise ModelError(f"{target} exists already. Choose another name, or delete it.")
    names = ("iterations", "seed", "device")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    config = BodyPartConfig()
    try:
        config = replace(config, train=replace(config.train, **given))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    check_device(config.train.device)
    datasets = [PreparedDataset.open(path) for path in args.source]
    folder = run_folder(args.model, "body_parts") if model else target.with_name(f"{target.name}.run")
    regressor = learn_body_parts(datasets, config, folder)
    if model:  # which lists its files: what it does not list is not read
        model.add_file(FILE, regressor.to_bytes())
    else:
        regressor.write(target)
    (folder / "checkpoint.pt").unlink(missing_ok=True)  # the file holds all of it now
    if not regressor.calibration.complete:
        log.warning("No vertebra labels were found: scores mean nothing yet; every answer will be unknown.")
    show(args, f"Wrote {target}; log and curves are in {folder}.")
    return 0
