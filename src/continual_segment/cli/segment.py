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
    add_engine,
    add_old_spelling,
    add_quiet,
    check_device,
    engine_config,
    model_argument,
    show,
)

if TYPE_CHECKING:
    from continual_segment.clinic.outputs import OutputConfig
    from continual_segment.segmentation import SegmentConfig

FAST_OVERLAP = 0.25
SECONDS_PER_SCAN = 7200.0


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "segment",
        help="segment a scan or a folder of scans",
        description="Segment scans into one label map each, on the scan's own grid and with organ names in "
        "its header, or into the formats of -ot. The organs found are printed with their volumes. In a "
        "batch, a scan that fails does not stop the others; failures are listed at the end (exit code 1). "
        "Run the command again to resume.",
        epilog="examples:\n"
        "  conseg segment ct.nii.gz -m starter -o labels\n"
        "  conseg segment scans/ -m mymodel -o results --organs liver,kidney_left\n"
        "  conseg segment ct_folder -m mymodel -o results -ot dicom_seg,rtstruct --statistics --preview",
    )
    parser.add_argument(
        "source",
        type=scan_or_archive,
        nargs="?",
        metavar="SCAN_OR_FOLDER",
        help="a NIfTI, NRRD or MetaImage file, a DICOM series as folder, zip or DICOMDIR, a folder of these, "
        "a dataset in the layout of TotalSegmentator (CASE/ct.nii.gz) or BIDS, a .txt file with one path "
        "a line, or the CT series of a DICOMweb archive: dicomweb://HOST/ROOT/studies/UID/series/UID, "
        "dicomweb://HOST/ROOT?PatientID=ID",
    )
    parser.add_argument(
        "-i", "--input", type=scan_or_archive, metavar="SCAN_OR_FOLDER", help="the same, as an option"
    )
    parser.add_argument(
        "-m",
        "--model",
        type=model_argument,
        nargs="+",
        required=True,
        metavar="MODEL",
        help="the model folder, or `starter` for the model in the package; of several, such as the networks "
        "of TotalSegmentator's `total`, labels are merged with the same rules",
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
    add_engine(parser, "scan", SECONDS_PER_SCAN)
    add_archive(parser)
    parser.set_defaults(run=run)


def add_extras(parser: argparse.ArgumentParser) -> None:
    """What is written beside the label maps."""
    group = parser.add_argument_group("additional outputs")
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
    group.add_argument("--view", action="store_true", help="open the results in the viewer at the end")
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
    group = parser.add_argument_group("merging")
    group.add_argument(
        "--merge",
        metavar="RULE",
        help="which organ gets a voxel that several packs claim: probability, ensemble, literal, restated, "
        "monotone, threshold, background-aware, consensus or weighted (default: weighted; with "
        "imported packs consensus)",
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
    group = parser.add_argument_group("computation")
    group.add_argument(
        "-f",
        "--fast",
        action="store_true",
        help=f"windows overlap by {FAST_OVERLAP}, unless --overlap is given: fewer windows, at "
        "some cost in Dice",
    )
    group.add_argument(
        "--overlap", type=float, metavar="SHARE", help="overlap of neighbouring windows (default: 0.5)"
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
    group = parser.add_argument_group("selection of scans")
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
        help="segment only the I-th of N parts of a batch, for job arrays (default: all)",
    )
    add_old_spelling(group, "--part", "--shard")
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="in a batch, also segment cases whose results are there and up to date",
    )
    add_old_spelling(group, "--again", "--overwrite", action="store_true")


def add_archive(parser: argparse.ArgumentParser) -> None:
    """For dicomweb:// alone."""
    group = parser.add_argument_group("DICOMweb archives")
    group.add_argument(
        "--stow",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="store DICOM results in this archive (--stow=dicomweb://HOST/ROOT), or, without an address, in "
        "the one that the series come from",
    )
    group.add_argument(
        "--credentials",
        type=Path,
        metavar="FILE",
        help="a TOML file with credentials by host; or set CONSEG_DICOMWEB_TOKEN, or CONSEG_DICOMWEB_USER "
        "and CONSEG_DICOMWEB_PASSWORD",
    )


def scan_or_archive(text: str) -> Path | str:
    """A path, or the address of an archive, which a path would change."""
    return text if text.lower().startswith(("dicomweb://", "dicomweb+http://")) else Path(text)


def run(args: argparse.Namespace) -> int:
    from continual_segment.clinic.segment import segment
    from continual_segment.errors import ConfigError

    take_scan_after_models(args)
    if (args.source is None) == (args.input is None):
        raise ConfigError("Name one scan or folder, either as first argument or after -i.")
    config, outputs = segment_config(args), output_config(args)
    if outputs.engine is None:  # its workers have devices of their own
        check_device(config.device)
    source = args.source or args.input
    if isinstance(source, str):
        failures = segment_from_archive(source, args, config, outputs)
    elif args.stow is not None or args.credentials:
        raise ConfigError("--stow and --credentials are for scans of an archive, dicomweb://...")
    else:
        failures = segment(source, args.model, args.out, wanted(args), config, outputs, names_in(args.packs))
    if failures:
        print(f"{len(failures)} failed:", file=sys.stderr)
        for scan, sentence in failures.items():
            print(f"  {sentence}" if sentence.startswith(scan) else f"  {scan}: {sentence}", file=sys.stderr)
        return 1
    if args.out.exists():  # not where a shard of a batch is empty
        show(args, f"Results are in {args.out}.")
        if isinstance(source, Path) and can_be_viewed(outputs):
            offer_viewer(args, source)
        elif args.view:
            show(args, "The viewer reads NIfTI and seg.nrrd, of one series per scan; these are others.")
    return 0


def segment_from_archive(
    source: str, args: argparse.Namespace, config: SegmentConfig, outputs: OutputConfig
) -> dict[str, str]:
    from continual_segment.model import Model
    from continual_segment.node.dicomweb.open import open_pull
    from continual_segment.node.dicomweb.pull import segment_archive
    from continual_segment.segmentation import open_segmenter

    pull = open_pull(source, args.stow, args.credentials)
    models = [Model.open(folder) for folder in args.model]
    segmenter = open_segmenter(models, wanted(args), names_in(args.packs), config)
    return segment_archive(pull, segmenter, args.out, outputs)


def can_be_viewed(outputs: OutputConfig) -> bool:
    """Whether the viewer reads these formats and can match the results with their scans."""
    return bool({"nifti", "seg.nrrd"} & set(outputs.formats)) and not (outputs.series or outputs.pick)


def offer_viewer(args: argparse.Namespace, source: Path) -> None:
    """Open the results with --view, or show the command that does."""
    model = args.model[0] if len(args.model) == 1 else None
    if args.view:
        from continual_segment.viewer.view import view

        view([source, args.out], model)
    elif args.preview:
        words = ["conseg", "view", source, args.out, *(["--model", model] if model else [])]
        show(args, f"To look at them: {shlex.join(map(str, words))}")


def take_scan_after_models(args: argparse.Namespace) -> None:
    """`-m MODEL SCAN`: what follows the models and is none is the scan."""
    from continual_segment.model.model import DESCRIPTION

    if args.source is None and args.input is None and len(args.model) > 1:
        *models, last = args.model
        if not (last / DESCRIPTION).is_file():
            text = re.sub(r"^(dicomweb(\+http)?):/(?=[^/])", r"\1://", str(last))  # a path has single slashes
            args.model, args.source = models, scan_or_archive(text)


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
        engine=engine_config(args),
    )


def wanted(args: argparse.Namespace) -> list[str] | None:
    """The organs given in either way; None for all."""
    if args.organs is None and args.roi_subset is None:
        return None
    return [*(names_in(args.organs) or ()), *(args.roi_subset or ())]


def names_in(text: str | None) -> list[str] | None:
    """Names with commas between them; None where the option was not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
