"""`conseg segment`: a scan, a DICOM series or a folder of them in, results out."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import (
    add_device,
    add_old_spelling,
    add_quiet,
    check_device,
    show,
)

if TYPE_CHECKING:
    from continual_segment.clinic.outputs import OutputConfig
    from continual_segment.segmentation import SegmentConfig

FAST_OVERLAP = 0.25


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "segment",
        help="segment a scan or a folder of scans",
        description="Segment scans: one label map each on the scan's own grid, organ names in its header; or "
        "as -ot sets. The organs that were found are listed with their volumes. In a batch a scan that fails "
        "is reported at the end and the others are segmented all the same (exit code 1). Run the command "
        "again to resume.",
        epilog="Examples: conseg segment ct_folder -m mymodel -o results -ot dicom_seg,rtstruct --statistics "
        "--preview; conseg segment scans/ -m mymodel -o results/ --organs liver,kidney_left",
    )
    parser.add_argument(
        "source",
        type=Path,
        nargs="?",
        metavar="SCAN_OR_FOLDER",
        help="a NIfTI, NRRD or MetaImage file, a DICOM series as folder, zip or DICOMDIR, a folder of these, "
        "a dataset in the layout of TotalSegmentator (CASE/ct.nii.gz) or BIDS, or a .txt file with one path "
        "a line",
    )
    parser.add_argument("-i", "--input", type=Path, metavar="SCAN_OR_FOLDER", help="the same, as an option")
    parser.add_argument(
        "-m",
        "--model",
        type=Path,
        nargs="+",
        required=True,
        metavar="FOLDER",
        help="the model folder; of several, such as the networks of TotalSegmentator's `total`, labels are "
        "merged with the same rules",
    )
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
        "-rs",
        "--roi_subset",
        "--roi-subset",
        nargs="+",
        metavar="ORGAN",
        help="the same, with spaces between",
    )
    parser.add_argument("--packs", metavar="A,B", help="run only these packs (default: all of the model)")
    add_quiet(parser)
    add_extras(parser)
    add_merging(parser)
    add_speed(parser)
    add_input(parser)
    parser.set_defaults(run=run)


def add_extras(parser: argparse.ArgumentParser) -> None:
    """What is written beside the label maps."""
    group = parser.add_argument_group("what else is written")
    group.add_argument(
        "-ml", "--ml", action="store_true", help="one label map for all organs, which is the default here"
    )
    group.add_argument(
        "-s",
        "--statistics",
        action="store_true",
        help="also write volume, Hounsfield units and quality per organ, to statistics/ as JSON and CSV",
    )
    group.add_argument(
        "-p",
        "--preview",
        action="store_true",
        help="also draw patient and organs from the front and the left, to preview/",
    )
    group.add_argument(
        "--scores",
        action="store_true",
        help="also write each voxel's winning probability, to scores/ beside the label maps",
    )
    group.add_argument(
        "--explain",
        action="store_true",
        help="also write the reasons, in folders beside the label maps: scores/, packs/ (which pack won), "
        "quality/ (per organ: entropy, disagreement, cut off at the edge) and, of nested organs, layers/",
    )


def add_merging(parser: argparse.ArgumentParser) -> None:
    """Where several packs know a voxel."""
    group = parser.add_argument_group("where packs meet")
    group.add_argument(
        "--merge",
        metavar="RULE",
        help="who wins a voxel that several packs claim: probability, ensemble, literal, restated, monotone, "
        "threshold, background-aware or consensus (default: consensus)",
    )
    group.add_argument(
        "--nested",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let an organ and its parts share voxels, such as aorta and arch, the parts drawn over the "
        "wholes (default), or compete for them",
    )
    group.add_argument(
        "--body-parts",
        type=Path,
        metavar="MODEL_OR_FILE",
        help="what `conseg bodyparts --learn` wrote, in place of the model's own: gives rules the body "
        "part of every slice; packs are not run where they cover nothing",
    )
    group.add_argument(
        "--ignore-coverage",
        action="store_true",
        help="run every pack everywhere, whatever body parts it covers",
    )
    add_old_spelling(group, "--everywhere", "--ignore-coverage", action="store_true")
    group.add_argument(
        "--keep-islands",
        action="store_true",
        default=None,
        help="leave every piece of an organ; by default those that the organ cannot have, by the training "
        "labels of its pack, are removed, and the manifest lists them",
    )


def add_speed(parser: argparse.ArgumentParser) -> None:
    """What trades time for Dice."""
    group = parser.add_argument_group("how it is computed")
    group.add_argument(
        "-f",
        "--fast",
        action="store_true",
        help=f"windows overlap by {FAST_OVERLAP}, unless --overlap is given: fewer windows; "
        "docs/performance.md shows what that costs in Dice",
    )
    group.add_argument(
        "--overlap", type=float, metavar="SHARE", help="of neighbouring windows (default: 0.5)"
    )
    group.add_argument(
        "--mirror",
        action="store_true",
        default=None,
        help="average over mirrored windows, as nnU-Net does by default: for packs imported from nnU-Net and "
        "trained with mirroring; up to eight times as slow",
    )
    group.add_argument(
        "--backend",
        metavar="NAME",
        help="what computes the networks: eager (PyTorch as it is), compiled (slow to start the first time, "
        "then faster), openvino (an extra to install), int8 (what `conseg quantise` made of the model; "
        "float32 where there is none or the CPU lacks VNNI) (default: eager)",
    )
    add_device(group, default="cpu")


def add_input(parser: argparse.ArgumentParser) -> None:
    """Which scans, of what there is."""
    group = parser.add_argument_group("which scans")
    group.add_argument(
        "--series",
        metavar="NUMBER",
        help="which DICOM series, where several could be meant: its SeriesNumber, its UID, or #2 for the "
        "second of the list that is shown (--series=#2)",
    )
    group.add_argument(
        "--pick",
        metavar="RULE",
        help="let a rule choose the DICOM series of every case: thinnest, most-slices, or all, which makes "
        "each series a case named CASE_NUMBER",
    )
    group.add_argument(
        "--force",
        action="store_true",
        help="segment what does not look like a CT, leave out DICOM files that cannot be read, and "
        "interpolate over gaps of any length",
    )
    group.add_argument(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="of a batch only the I-th of N shares, for job arrays (default: all)",
    )
    add_old_spelling(group, "--part", "--shard")
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="in a batch, also segment cases whose results are there and up to date",
    )
    add_old_spelling(group, "--again", "--overwrite", action="store_true")


def run(args: argparse.Namespace) -> int:
    from continual_segment.clinic.segment import segment
    from continual_segment.errors import ConfigError

    take_scan_after_models(args)
    if (args.source is None) == (args.input is None):
        raise ConfigError("Name one scan or folder, either as first argument or after -i.")
    config, outputs = segment_config(args), output_config(args)
    check_device(config.device)
    source = args.source or args.input
    failures = segment(source, args.model, args.out, wanted(args), config, outputs, names_in(args.packs))
    if failures:
        print(f"{len(failures)} failed:", file=sys.stderr)
        for scan, sentence in failures.items():
            print(f"  {sentence}" if sentence.startswith(scan) else f"  {scan}: {sentence}", file=sys.stderr)
        return 1
    if args.out.exists():  # not where a shard of a batch is empty
        show(args, f"Results are in {args.out}.")
        if args.preview and (command := view_command(source, args.out, outputs)):
            show(args, f"To look at them: {command}")
    return 0


def view_command(source: Path, out: Path, outputs: OutputConfig) -> str | None:
    """The command that shows these results; None where the viewer cannot read them or match the cases."""
    if not {"nifti", "seg.nrrd"} & set(outputs.formats) or outputs.series or outputs.pick:
        return None
    return shlex.join(["conseg", "view", str(source), str(out)])


def take_scan_after_models(args: argparse.Namespace) -> None:
    """`-m MODEL SCAN`: what follows the models and is none is the scan."""
    from continual_segment.model.model import DESCRIPTION

    if args.source is None and args.input is None and len(args.model) > 1:
        *models, last = args.model
        if not (last / DESCRIPTION).is_file():
            args.model, args.source = models, last


def segment_config(args: argparse.Namespace) -> SegmentConfig:
    from continual_segment.errors import ConfigError
    from continual_segment.segmentation import SegmentConfig

    names = ("merge", "nested", "keep_islands", "overlap", "mirror", "backend", "device")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.ignore_coverage:
        given["body_parts"] = False
    if args.fast:
        given.setdefault("overlap", FAST_OVERLAP)
    if "device" in given:
        given["device"] = re.sub(r"^gpu\b", "cuda", given["device"])  # as TotalSegmentator calls it
    try:
        return SegmentConfig(**given)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def output_config(args: argparse.Namespace) -> OutputConfig:
    from continual_segment.clinic.formats import format_of_file
    from continual_segment.clinic.outputs import OutputConfig
    from continual_segment.errors import ConfigError

    formats = names_in(args.output_type)
    if formats is None:
        formats = [format_of_file(args.out) or "nifti"]
    if args.ml and "nifti" not in formats:
        raise ConfigError(f"--ml means one NIfTI label map, but -ot is {', '.join(formats)}.")
    if not (shard := re.fullmatch(r"(\d+)/(\d+)", args.shard)):
        raise ConfigError(f"--shard is I/N, such as 2/8, not {args.shard!r}.")
    return OutputConfig(
        formats=tuple(formats),
        scores=args.scores,
        explain=args.explain,
        statistics=args.statistics,
        preview=args.preview,
        series=args.series,
        pick=args.pick,
        force=args.force,
        shard=(int(shard[1]), int(shard[2])),
        overwrite=args.overwrite,
        body_parts=args.body_parts,
    )


def wanted(args: argparse.Namespace) -> list[str] | None:
    """The organs given in either way; None for all."""
    if args.organs is None and args.roi_subset is None:
        return None
    return [*(names_in(args.organs) or ()), *(args.roi_subset or ())]


def names_in(text: str | None) -> list[str] | None:
    """Names with commas between them; None where the option was not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
