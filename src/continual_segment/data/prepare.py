"""prepare: every scan of a raw dataset on one spacing, clipped, split, and stored for quick patches.

Hundreds of scans take hours, so the work is spread over processes, may be stopped at any moment and then
resumes: a case is done once its `case.json` exists, which is written last and has the settings and checksums
of the files it was made from. Checksums are computed again only where path, size or time of a file have
changed, as in a copy or on a new mount. A case that fails does not stop the others; all failures are listed
at the end. `dataset.json` is written only when every case is done.

In:  RawDataset, a folder, PrepareConfig
Out: PreparedDataset (its module describes the folder)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, NamedTuple

import blosc2
import numpy as np
import torch
from filelock import FileLock, Timeout
from scipy import ndimage

from continual_segment.data.nnunet_scan import NnunetScan
from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.data.prepared import PreparedDataset, case_folder
from continual_segment.data.prepared_records import (
    CaseRecord,
    Checksum,
    DatasetHeader,
    Stamp,
    read_fields,
)
from continual_segment.data.raw import RawCase, RawDataset
from continual_segment.data.resample import resample_labels, resample_scan
from continual_segment.errors import DatasetError
from continual_segment.files.atomic import UNFINISHED, atomic_path, write_json
from continual_segment.files.records import as_record
from continual_segment.processes import for_each, workers_for
from continual_segment.progress import progress_bar
from continual_segment.volume import Grid, LabelMap, Volume

__all__ = [
    "PrepareConfig",
    "PreparedDataset",
    "on_spacing",
    "prepare",
    "prepare_scan",
    "stale_cases",
]

logger = logging.getLogger(__name__)

CASE_ARRAYS = ("scan.b2nd", "labels.b2nd", "foreground.npy")
FOREGROUND_POSITIONS = 2000  # per organ and case
PATIENCE = 15.0  # seconds to wait for another process: it may only be looking whether all cases are done
CHUNK, BLOCK = (32, 128, 128), (16, 32, 32)  # a patch unpacks whole blocks: small ones waste little


def prepare(
    raw: RawDataset | str | Path,
    folder: str | Path,
    config: PrepareConfig,
    workers: int | None = None,
    progress: bool = True,
) -> PreparedDataset:
    """Prepare every case that is not up to date, then describe the dataset.

    `workers` processes share the work; by default one per core, and fewer for small data. Every worker
    holds one scan at a time, in full and as float32. DatasetError names all cases that failed.
    """
    folder = Path(folder)
    raw = raw if isinstance(raw, RawDataset) else RawDataset.open(raw, workers, progress=progress)
    with _alone_in(folder, raw):
        return _prepare(raw, folder, config, workers, progress)


@contextmanager
def _alone_in(folder: Path, raw: RawDataset) -> Iterator[None]:
    """While entered, no other process writes into the folder, which is this dataset's."""
    _refuse_another_dataset(raw, folder)
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=PATIENCE):
            yield
    except Timeout as error:
        raise DatasetError(
            f"{folder}: another process is preparing scans here. Wait until it ends, then run the command "
            "again: finished cases are kept."
        ) from error


def _prepare(
    raw: RawDataset, folder: Path, config: PrepareConfig, workers: int | None, progress: bool
) -> PreparedDataset:
    dataset = PreparedDataset(folder, raw.name, raw.organs, config, raw.splits)
    stale = _stale_cases(raw, folder, config, progress)
    if stale:
        (folder / "dataset.json").unlink(missing_ok=True)  # until all cases are there again
        logger.info("%s: %d of %d cases to prepare.", raw.name, len(stale), len(raw.cases))
    outcome = for_each(
        _prepare_case,
        {case.name: (case, dataset.case_folder(case.name)) for case in stale},
        (
            replace(raw, cases=()),
            config,
        ),  # a worker gets its case alone: a long list would be pickled for each
        workers_for((case.scan for case in stale), workers),
        f"Preparing {raw.name}",
        progress,
        start=_one_thread,
    )
    _refuse_failures(folder, outcome.failures, len(raw.cases))
    dataset.save()
    _warn_of_organs_without_voxels(dataset)
    return dataset


def _refuse_failures(folder: Path, failures: dict[str, str], cases: int) -> None:
    if failures:
        lines = [f"  {name}: {reason}".replace("\n", "\n    ") for name, reason in failures.items()]
        raise DatasetError(
            f"{folder}: {len(failures)} of {cases} cases could not be prepared; the others are kept. "
            "Fix or remove these and run the command again:\n" + "\n".join(lines)
        )


def stale_cases(raw: RawDataset, folder: Path, config: PrepareConfig) -> list[RawCase]:
    """The cases that preparing into this folder would make, the others being up to date."""
    folder = Path(folder)
    if not (folder / "cases").is_dir():
        return list(raw.cases)
    with _alone_in(folder, raw):
        return _stale_cases(raw, folder, config, progress=True)


def _stale_cases(raw: RawDataset, folder: Path, config: PrepareConfig, progress: bool) -> list[RawCase]:
    cases = progress_bar(
        raw.cases,
        desc=f"Comparing {raw.name}",
        unit="case",
        delay=2,  # where no file is read, it takes less
        leave=False,
        disable=not progress,
    )
    return [case for case in cases if not _is_up_to_date(case, case_folder(folder, case.name), raw, config)]


def prepare_scan(volume: Volume, config: PrepareConfig) -> Volume:
    """What a scan goes through before it is stored: the spacing, then clipping. HU, int16."""
    resampled = on_spacing(volume, config)
    return Volume(np.clip(resampled.voxels, *config.intensity.stored_hu), resampled.grid)


def on_spacing(volume: Volume, config: PrepareConfig) -> Volume:
    """The scan on the spacing that networks expect: HU, int16, not yet clipped."""
    return resample_scan(volume, volume.grid.with_spacing(config.spacing_mm), np.int16)


# One case


def _one_thread() -> None:
    """In a worker: the processes are the parallelism."""
    torch.set_num_threads(1)
    blosc2.set_nthreads(1)


def _prepare_case(case: RawCase, folder: Path, raw: RawDataset, config: PrepareConfig) -> None:
    """Read, resample, clip, store. Nothing of a stopped attempt stays."""
    _clear_case(folder)
    seen = _stamps(case)  # before anything is read: a file that changes meanwhile is found changed next time
    origin = _origin(seen, raw, config, known={})
    volume, labels = raw.read(case)
    small = labels.voxels.astype(np.uint8 if len(raw.organs) <= 255 else np.uint16, copy=False)
    make = _arrays_as_nnunet if config.nnunet else _arrays
    scan, organs, grid, about = make(volume, LabelMap(small, labels.grid), config)
    _write_array(folder / "scan.b2nd", scan)
    _write_array(folder / "labels.b2nd", organs)
    rows = _write_foreground(folder / "foreground.npy", organs, case.name)
    described = {
        "name": case.name,
        "grid": {
            "shape": list(grid.shape),
            "spacing_mm": list(grid.spacing_mm),
            "affine": grid.affine.tolist(),
            "orientation": grid.orientation,
        },
        "foreground": rows,
        "origin": origin,
        "seen": seen,
    } | about
    write_json(folder / "case.json", described)  # last: from now on the case is there


class CaseArrays(NamedTuple):
    """What is stored of a case."""

    scan: np.ndarray
    labels: np.ndarray
    grid: Grid
    about: dict[str, Any]
    """Fields of `case.json` that not every case has."""


def _arrays(volume: Volume, labels: LabelMap, config: PrepareConfig) -> CaseArrays:
    """Hounsfield units on the config's spacing."""
    scan = prepare_scan(volume, config)
    fitted = config.intensity.fitted(scan.voxels) if config.intensity.per_scan else None
    about = {"intensity": asdict(fitted)} if fitted else {}
    return CaseArrays(scan.voxels, resample_labels(labels, scan.grid).voxels, scan.grid, about)


def _arrays_as_nnunet(volume: Volume, labels: LabelMap, config: PrepareConfig) -> CaseArrays:
    """Network input in the network's axes, with labels resampled by us: those of nnU-Net need more memory."""
    way = NnunetScan(volume, config)
    dtype = np.float32 if config.intensity.kind == "none" else np.float16  # too coarse for Hounsfield units
    scan = np.concatenate([slab.astype(dtype) for slab in way.slabs()])
    cropped = LabelMap(way.frame.from_network(way.crop(labels.voxels)), way.crop_grid)
    organs = way.frame.to_network(resample_labels(cropped, way.grid).voxels)
    about = {"frame": asdict(way.frame), "intensity": asdict(way.normalised.intensity)}
    return CaseArrays(scan, organs, way.grid, about)


def _clear_case(folder: Path) -> None:
    """Make the case's folder, or delete the files that an earlier attempt wrote in it, and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.json").unlink(missing_ok=True)  # first: the case counts as done while it is there
    for path in folder.iterdir():
        if path.name in CASE_ARRAYS or path.name.startswith(UNFINISHED):
            path.unlink()


def _write_array(file: Path, voxels: np.ndarray) -> None:
    chunk = tuple(min(side, length) for side, length in zip(CHUNK, voxels.shape, strict=True))
    block = tuple(min(side, length) for side, length in zip(BLOCK, chunk, strict=True))
    packing = blosc2.CParams(codec=blosc2.Codec.ZSTD, clevel=5, nthreads=1)
    with atomic_path(file) as unfinished:
        try:
            blosc2.asarray(
                np.ascontiguousarray(voxels),
                chunks=chunk,
                blocks=block,
                cparams=packing,
                urlpath=str(unfinished),
                mode="w",
            )
        except RuntimeError as error:
            raise OSError(f"{file}: could not be written ({error}). Is the disk full?") from error


def _write_foreground(file: Path, labels: np.ndarray, case_name: str) -> dict[int, list[int]]:
    """Some voxels of every organ as rows (label, z, y, x); returns each label's first and last row."""
    rng = np.random.default_rng(int.from_bytes(sha256(case_name.encode()).digest()))
    tables, rows, start = [np.zeros((0, 4), np.uint16)], {}, 0
    for label, crop in enumerate(ndimage.find_objects(labels), start=1):
        if crop is None:
            continue
        mask = labels[crop] == label
        found = np.flatnonzero(mask)
        chosen = np.sort(rng.choice(found, min(len(found), FOREGROUND_POSITIONS), replace=False))
        positions = np.stack(np.unravel_index(chosen, mask.shape), axis=1) + [part.start for part in crop]
        tables.append(np.insert(positions, 0, label, axis=1).astype(np.uint16))
        rows[label] = [start, start + len(chosen)]
        start += len(chosen)
    with atomic_path(file) as unfinished, unfinished.open("wb") as stream:
        np.save(stream, np.concatenate(tables), allow_pickle=False)
    return rows


# What is there already


def _origin(
    stamps: Sequence[Stamp], raw: RawDataset, config: PrepareConfig, known: Mapping[Stamp, Checksum]
) -> dict[str, Any]:
    """All that a prepared case depends on, as JSON has it; the case is up to date while this is equal.

    `stamps` are its files'; those with a stamp in `known` are not read.
    """
    origin = {
        "format": config.format,
        "config": config.described(),
        "organs": [organ.name for organ in raw.organs],
        "files": [known.get(stamp) or _name_and_checksum(Path(stamp[0])) for stamp in stamps],
    }
    return json.loads(json.dumps(origin))


def _stamps(case: RawCase) -> tuple[Stamp, ...]:
    return tuple(_stamp(path.resolve()) for path in (case.scan, *case.labels))


def _stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:
        return str(path), 0, 0  # gone: reading the case raises
    return str(path), stat.st_size, stat.st_mtime_ns


def _name_and_checksum(path: Path) -> Checksum:
    """Both: where every organ has a file, the name identifies the organ."""
    try:
        with path.open("rb") as stream:
            return path.name, file_digest(stream, "sha256").hexdigest()
    except OSError:
        return path.name, ""  # as above


def _is_up_to_date(case: RawCase, folder: Path, raw: RawDataset, config: PrepareConfig) -> bool:
    """Files found unchanged in another place or time are noted, and not read the next time."""
    file, stamps = folder / "case.json", _stamps(case)
    try:
        described = read_fields(file)
        known = as_record(described, CaseRecord, str(file), DatasetError)
    except DatasetError:  # missing or damaged: the case is made anew
        return False
    same = bool(described["origin"] == _origin(stamps, raw, config, known.checksums))
    if same and known.seen != stamps:
        write_json(file, described | {"seen": stamps})
    return same


def _refuse_another_dataset(raw: RawDataset, folder: Path) -> None:
    """Never write into what is not this dataset, prepared: least of all into the raw one."""
    file = folder / "dataset.json"
    if folder.resolve() == raw.folder.resolve():
        raise DatasetError(f"{folder}: this is the raw dataset itself. Choose another folder with -o.")
    if not file.is_file():
        return
    try:
        there = as_record(read_fields(file), DatasetHeader, str(file), DatasetError).name
    except DatasetError:
        there = ""
    prepared = there and (folder / "cases").is_dir()
    if not prepared or there != raw.name:
        found = f"the prepared dataset {there}" if prepared else "a raw or damaged dataset"
        raise DatasetError(
            f"{folder}: contains {found}; an empty folder or {raw.name}, prepared, was expected. "
            "Choose another folder with -o."
        )


def _warn_of_organs_without_voxels(dataset: PreparedDataset) -> None:
    if absent := dataset.absent_organs:
        logger.warning(
            "%s: no training case has a voxel of %s at this spacing; nothing can be learned about it.",
            dataset.name,
            ", ".join(organ.name for organ in absent),
        )
