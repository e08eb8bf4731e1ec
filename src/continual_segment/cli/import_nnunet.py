"""`conseg import`: a trained nnU-Net v2 becomes a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_quiet, model_argument, show


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "import",
        help="make a model of a trained nnU-Net v2: its encoder and a first pack",
        description="Make a model of a trained stock nnU-Net v2. Its encoder becomes the frozen one, its "
        "organs the first pack; weights keep every bit, and scans are prepared as nnU-Net does. The command "
        "reads plans.json, dataset.json and one checkpoint, without running any code in them. It refuses, "
        "with the reason, 2D and cascaded configurations, several input channels, networks other than "
        "PlainConvUNet and ResidualEncoderUNet, and preprocessing other than nnU-Net's own. Of several folds "
        "one is imported; nnU-Net's average over folds is not available.",
        epilog="example:\n"
        "  conseg import nnUNet_results/Dataset291_Organs -m mymodel --name organs\n"
        "  conseg segment ct.nii.gz -m mymodel -o labels\n"
        "\n"
        "to add an organ:\n"
        "  conseg prepare RAW --model mymodel -o PREPARED\n"
        "  conseg learn PREPARED -m mymodel",
    )
    parser.add_argument(
        "source", type=Path, metavar="NNUNET_FOLDER_OR_ZIP",
        help="nnU-Net's model folder <trainer>__<plans>__<configuration>, a folder above it, or a zip of "
        "nnUNetv2_export_model_to_zip",
    )  # fmt: skip
    parser.add_argument(
        "-m",
        "--model",
        type=model_argument,
        required=True,
        metavar="MODEL",
        help="the folder to make; must not exist",
    )
    parser.add_argument(
        "--configuration", metavar="NAME", help="such as 3d_fullres; needed where there are several"
    )
    parser.add_argument("--fold", metavar="N", help="a number or all (default: the first)")
    parser.add_argument("--name", metavar="NAME", help="name of the pack (default: the dataset's name)")
    parser.add_argument(
        "--ras",
        action="store_true",
        help="the network was trained on files in RAS orientation: turn every scan to it. Needed for "
        "TotalSegmentator, MOOSE and CADS unless their plans name a reader ...WithReorient",
    )
    parser.add_argument(
        "--orientation", metavar="CODES",
        help="the network was trained on files in this orientation, such as LPS: turn every scan to it "
        "(default: each scan as it is stored, as stock nnU-Net does)",
    )  # fmt: skip
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.model.nnunet import import_nnunet

    imported, report = import_nnunet(
        args.source, args.model, args.configuration, args.fold, args.name, args.ras, args.orientation
    )
    (name,) = imported.pack_names
    show(args, "\n".join(report.lines()))
    show(
        args,
        f"{args.model} now has pack '{name}' with {len(report.organs)} organs.\n"
        f"Next: conseg segment SCAN -m {args.model} -o OUT\n"
        f"To add organs: conseg prepare RAW --model {args.model} -o PREPARED; conseg learn PREPARED -m "
        f"{args.model}",
    )
    return 0
