"""`conseg export`: a pack becomes a model folder of nnU-Net."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_model


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "export",
        help="write a pack of an imported model as an nnU-Net v2 model folder",
        description="Write a pack and the model's encoder as a model folder that stock nnU-Net v2 runs. The "
        "model must have been imported from nnU-Net, so that nnU-Net can prepare scans for it, and the "
        "pack's decoder must be nnU-Net's own: one that was shrunk, searched or pruned is refused. To share "
        "a pack with users of conseg, use `conseg pack export`.",
        epilog="example:\n"
        "  conseg export larynx -m mymodel -o larynx_nnunet\n"
        "  nnUNetv2_predict_from_modelfolder -i SCANS -o OUT -f 0 \\\n"
        "      -m larynx_nnunet/nnUNetTrainerNoMirroring__nnUNetPlans__3d_fullres",
    )
    parser.add_argument("pack", metavar="PACK", help="a pack of the model")
    add_model(parser)
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FOLDER", help="where to write; new or empty"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.model.nnunet import export_nnunet

    written = export_nnunet(args.model, args.pack, args.out)
    print(f"Wrote {written}.\nNext: nnUNetv2_predict_from_modelfolder -m {written} -f 0 -i SCANS -o OUT")
    return 0
