"""`conseg quantise`: int8 versions of a model's networks, beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_model, add_quiet, show


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "quantise",
        help="make a model ready for --backend int8",
        description="Quantise the encoder and the packs of a model to int8, calibrated on a few scans, and "
        "store them in MODEL.int8 beside the model. The model and its packs do not change, and the folder "
        "may be deleted at any time. `conseg segment --backend int8` uses it. Run the command again after a "
        "pack was added. Needs an extra: pip install '.[int8]' in the clone.",
        epilog="example:\n"
        "  conseg quantise -m mymodel --scans a.nii.gz b.nii.gz c.nii.gz\n"
        "  conseg segment ct.nii.gz -m mymodel -o labels --backend int8",
    )
    add_model(parser)
    parser.add_argument(
        "--scans",
        type=Path,
        nargs="+",
        required=True,
        metavar="SCAN",
        help="a few scans like those to be segmented, from every body part that the packs cover",
    )
    parser.add_argument(
        "--windows", type=int, metavar="N", help="number of windows to calibrate on (default: 40)"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        default=None,
        help="also quantise networks that are quantised already",
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.segmentation.int8 import has_vnni
    from continual_segment.segmentation.quantise import QuantiseConfig, quantise

    options = {name: getattr(args, name) for name in ("windows", "overwrite")}
    config = QuantiseConfig(**{name: value for name, value in options.items() if value is not None})
    folder = quantise(args.model, args.scans, config)
    show(args, f"The int8 networks are in {folder}.")
    if not has_vnni():
        show(args, "This CPU lacks VNNI: here, --backend int8 falls back to float32.")
    return 0
