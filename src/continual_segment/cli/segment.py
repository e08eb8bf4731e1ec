"""`conseg segment`: a scan, a DICOM series or a folder of them in, results out."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_device, add_model, check_device


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "segment",
        help="segment a scan or a folder of scans",
        description="Write one label map per scan, on the scan's own grid, with organ names in its header. "
        "In a folder, a scan that fails is reported at the end and the others are segmented all the same "
        "(exit code 1).",
        epilog="Example: conseg segment scans/ -m mymodel -o results/ --organs liver,kidney_left",
    )
    parser.add_argument(
        "source",
        type=Path,
        nargs="?",
        metavar="SCAN_OR_FOLDER",
        help="a NIfTI, NRRD or MetaImage file, a DICOM series as folder or zip, a folder of these, or a "
        ".txt file with one path a line",
    )
    parser.add_argument("-i", "--input", type=Path, metavar="SCAN_OR_FOLDER", help="the same, as an option")
    add_model(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="OUT",
        help="a folder, or for one scan a .nii.gz, .seg.nrrd or .dcm file",
    )
    parser.add_argument(
        "-ot",
        "--output-type",
        "--output_type",
        metavar="A,B",
        help="nifti (one label map), organs (a file each), seg.nrrd (3D Slicer), dicom_seg, dicom_labelmap, "
        "rtstruct; several at once with commas (default: by OUT's name, else nifti)",
    )
    parser.add_argument(
        "--organs", metavar="A,B", help="only these organs; packs without any of them are not run"
    )
    parser.add_argument(
        "--scores",
        action="store_true",
        help="also write each voxel's winning probability, to scores/ beside the label maps",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also write the reasons, in folders beside the label maps: scores/, packs/ (which pack won), "
        "quality/ (per organ: entropy, disagreement, cut off at the edge) and, of nested organs, layers/",
    )
    parser.add_argument(
        "--merge",
        metavar="RULE",
        help="who wins a voxel that several packs claim: probability, ensemble, literal, restated, monotone, "
        "threshold or background-aware (default: probability)",
    )
    parser.add_argument(
        "--body-parts",
        type=Path,
        metavar="MODEL_OR_FILE",
        help="what `conseg bodyparts --learn` wrote: tells rules the body part of every slice, and packs are "
        "not run where they cover nothing",
    )
    parser.add_argument(
        "--nested",
        action="store_true",
        default=None,
        help="let an organ and its parts share voxels, such as aorta and arch; parts are drawn over wholes",
    )
    parser.add_argument(
        "--overlap", type=float, metavar="SHARE", help="of neighbouring windows (default: 0.5)"
    )
    parser.add_argument(
        "--compile", action="store_true", default=None, help="run networks through torch.compile"
    )
    parser.add_argument(
        "--series", metavar="NUMBER_OR_UID", help="which DICOM series, where several could be meant"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="segment what does not look like a CT, and interpolate over gaps of any length",
    )
    add_device(parser, default="cpu")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.clinic import OutputConfig, segment
    from continual_segment.clinic.formats import format_of_file
    from continual_segment.errors import ConfigError
    from continual_segment.segmentation import SegmentConfig

    if (args.source is None) == (args.input is None):
        raise ConfigError("Name one scan or folder, either as first argument or after -i.")
    names = ("merge", "nested", "overlap", "compile", "device")
    try:
        config = SegmentConfig(
            **{name: getattr(args, name) for name in names if getattr(args, name) is not None}
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    check_device(config.device)
    organs = (
        [name.strip() for name in args.organs.split(",") if name.strip()] if args.organs is not None else None
    )
    formats = args.output_type.split(",") if args.output_type else [format_of_file(args.out) or "nifti"]
    outputs = OutputConfig(tuple(formats), args.scores, args.explain, args.series, args.force)
    source = args.source or args.input
    failures = segment(source, args.model, args.out, organs, config, outputs, args.body_parts)
    if failures:
        print(f"{len(failures)} failed:")
        for scan, sentence in failures.items():
            print(f"  {scan}: {sentence}")
        return 1
    print(f"Label maps are in {args.out}.")
    return 0
