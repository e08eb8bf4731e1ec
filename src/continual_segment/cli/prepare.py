"""`conseg prepare`: a raw dataset becomes one that can be learned."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import add_quiet, model_argument, positive_int, show

if TYPE_CHECKING:
    from continual_segment.data.prepare import PrepareConfig, PreparedDataset

DEFAULT_PRESET = "laptop"

DESCRIPTION = """\
Check a dataset of CT scans with labels and prepare it for learning: every scan is turned to one orientation,
resampled to one spacing, clipped to what the model reads, and stored so that patches are read quickly.
Every case is checked first, and every problem of every case is listed at once.

RAW is a folder in one of three layouts; the layout is detected automatically:
  nnU-Net           dataset.json, imagesTr/<case>_0000.nii.gz, labelsTr/<case>.nii.gz
  TotalSegmentator  <case>/ct.nii.gz, <case>/segmentations/<organ>.nii.gz
  Decathlon         dataset.json that lists its files, imagesTr/<case>.nii.gz, labelsTr/<case>.nii.gz

The raw dataset is only read. 20 % of the cases are kept for testing and a fifth of the others for validation;
a case's name decides, so it stays where it is when cases are added. Cases that the column split of a
TotalSegmentator meta.csv lists keep that split."""

EPILOG = """\
examples:
  conseg prepare Dataset101_Kidneys                     the first dataset of a new model
  conseg prepare Dataset102_Larynx --model mymodel      a further one: prepared as that model needs it
  conseg prepare Dataset101_Kidneys --spacing 3 1.5 1.5 -o kidneys_3mm

Stop it with Ctrl-C and run the same command again to resume. Run later, it prepares only the cases that were
added or changed."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "prepare",
        help="check and prepare a dataset: nnU-Net, TotalSegmentator or Decathlon layout",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("raw", type=Path, metavar="RAW", help="folder of the raw dataset")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="folder to write (default: RAW's name + _prepared, here)",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--preset",
        default=DEFAULT_PRESET,
        metavar="NAME",
        help=f"take spacing and intensity from a preset or a TOML file (default: {DEFAULT_PRESET})",
    )
    source.add_argument(
        "-m",
        "--model",
        type=model_argument,
        metavar="MODEL",
        help="take them from the model that will learn this dataset",
    )
    parser.add_argument(
        "--spacing",
        type=float,
        nargs=3,
        metavar=("Z", "Y", "X"),
        help="another spacing than the preset's, in millimetres",
    )
    parser.add_argument(
        "--workers", type=positive_int, metavar="N", help="processes to work with (default: one per core)"
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.data.prepare import prepare, stale_cases
    from continual_segment.data.prepared import default_folder
    from continual_segment.data.raw import RawDataset

    config = _config(args)
    raw = RawDataset.open(args.raw, check=False)
    folder = args.output or default_folder(args.raw)
    if stale_cases(raw, folder, config):  # checking reads every voxel: only when there is work to do
        raw = RawDataset.open(args.raw, workers=args.workers)
    dataset = prepare(raw, folder, config, args.workers)
    for note in raw.notes:
        show(args, f"Note: {note}")
    show(args, _described(dataset))
    show(args, _next_step(args, dataset))
    return 0


def _next_step(args: argparse.Namespace, dataset: PreparedDataset) -> str:
    """The command that learns the dataset, or why it cannot be learned yet."""
    from continual_segment.errors import DatasetError
    from continual_segment.learning.step import check_splits
    from continual_segment.model.starter import is_starter

    try:
        check_splits(dataset)
    except DatasetError as error:
        return f"Note: {error}"
    learn = ["conseg", "learn", str(dataset.folder), "-m"]
    learn += _for_model(args.model, dataset.name) if args.model else _for_new_model(args.preset, dataset.name)
    copied = args.model and is_starter(args.model)
    copy = f"{shlex.join(['conseg', 'starter', '-o', _new_model()])}; " if copied else ""
    return f"Next: {copy}{shlex.join(learn)}"


def _for_model(folder: Path, dataset: str) -> list[str]:
    """The model, the preset it was made with, and a name that is free in it."""
    from continual_segment.config import preset_of
    from continual_segment.model import Model
    from continual_segment.model.starter import is_starter

    model = Model.open(folder)
    preset = preset_of(model.network) or DEFAULT_PRESET
    target = _new_model() if is_starter(folder) else str(folder)
    return [target, *_preset(preset), *_name(dataset, model.pack_names)]


def _for_new_model(preset: str, dataset: str) -> list[str]:
    return [_new_model(), *_preset(preset), *_name(dataset, ())]


def _new_model() -> str:
    """A folder that is free."""
    folders = (f"mymodel{ending}" for ending in _endings())
    return next(folder for folder in folders if not Path(folder).exists())


def _preset(name: str) -> list[str]:
    return ["--preset", name] if name != DEFAULT_PRESET else []


def _name(dataset: str, taken: Sequence[str]) -> list[str]:
    """The pack is named after the dataset, unless that is no name for a pack or another one has it."""
    if dataset not in taken and _is_pack_name(dataset):
        return []
    allowed = re.sub(r"[^A-Za-z0-9_-]+", "_", dataset).strip("_-") or "pack"
    return ["--name", next(name for ending in _endings() if (name := f"{allowed}{ending}") not in taken)]


def _is_pack_name(name: str) -> bool:
    from continual_segment.errors import ModelError
    from continual_segment.model.checks import check_name

    try:
        check_name(name)
    except ModelError:
        return False
    return True


def _endings() -> Iterator[str]:
    yield ""
    yield from (f"_{number}" for number in count(2))


def _config(args: argparse.Namespace) -> PrepareConfig:
    from dataclasses import replace

    from continual_segment.config import load_preset
    from continual_segment.errors import ConfigError

    if args.model and args.spacing:
        raise ConfigError(
            "--spacing: a model reads one spacing only, its own. Leave out --spacing or --model."
        )
    if args.model:
        from continual_segment.model import Model

        return Model.open(args.model).prepare
    config = load_preset(args.preset).prepare
    if not args.spacing:
        return config
    try:
        return replace(config, spacing_mm=tuple(args.spacing))
    except ValueError as error:
        raise ConfigError(f"--spacing: {error}") from error


def _described(dataset: PreparedDataset) -> str:
    from continual_segment.data.splits import SPLITS

    counts = ", ".join(f"{len(dataset.case_names(split))} {split}" for split in SPLITS)
    spacing = " x ".join(f"{size:g}" for size in dataset.config.spacing_mm)
    return (
        f"{dataset.name}: {len(dataset.splits)} cases ({counts}), {len(dataset.organs)} organs, "
        f"{spacing} mm (z, y, x).\n"
        f"Prepared in {dataset.folder}"
    )
