"""What a scan of an archive costs by parts: CPU seconds and bytes of reading, segmenting and writing.

    python benchmarks/scan_cost.py DEMO                      # 200 slices of 512 x 512
    python benchmarks/scan_cost.py DEMO --slices 60 --pixels 128

A phantom scan of a demo is enlarged to the grid of a clinical CT and written as NIfTI and as a DICOM series.
Each is read, segmented by all packs of the demo and written, as NIfTI or DICOM SEG, in one thread. CPU
seconds change little on a crowded machine. The last line: the time to find that a case is done.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from export_share import enlarged

from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import is_done, request_of
from continual_segment.clinic.outputs import OutputConfig, write_result
from continual_segment.clinic.read import read_case
from continual_segment.clinic.segment_case import segment_case
from continual_segment.files import read_scan, write_scan
from continual_segment.files.dicom.derive import derived_series, write_series
from continual_segment.malloc import keep_freed_memory
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.volume import Volume

Value = TypeVar("Value")
LOOKS = 200
"""How often a finished case is looked for."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path, help="folder with model/ and raw/")
    parser.add_argument("--slices", type=int, default=200)
    parser.add_argument("--pixels", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    segmenter = Segmenter(Model.open(args.demo / "model"), config=SegmentConfig(progress=False))
    scan = enlarged(
        read_scan(min((args.demo / "raw").glob("*/imagesTr/*.nii.gz"))),
        (args.slices, args.pixels, args.pixels),
    )
    with tempfile.TemporaryDirectory() as folder:
        nifti, series = write_sources(scan, Path(folder))
        measure(nifti, segmenter, OutputConfig(("nifti",)))
        measure(series, segmenter, OutputConfig(("dicom_seg",)))


def write_sources(scan: Volume, folder: Path) -> tuple[Path, Path]:
    nifti, series = folder / "nifti.nii.gz", folder / "series"
    write_scan(nifti, scan)
    write_series(series, derived_series("case", scan), scan)
    return nifti, series


def measure(source: Path, segmenter: Segmenter, outputs: OutputConfig) -> None:
    """Print the cost of one scan."""
    request = request_of(segmenter, outputs.for_manifest())
    job = Job("case", source, source.parent / f"{source.name}.results", alone=False)
    case, reading = timed(lambda: read_case(job, None, False))
    result, segmenting = timed(lambda: segment_case(case, segmenter, None, outputs))
    _, writing = timed(lambda: write_result(result, outputs, request))
    found, looking = timed(lambda: [is_done(job, request) for _ in range(LOOKS)])
    assert all(found)
    print(f"{source.name}, results as {', '.join(outputs.formats)}")
    print(f"  reading      {reading:8.1f} CPU s  {megabytes(source):8.1f} MB")
    print(f"  segmenting   {segmenting:8.1f} CPU s")
    print(f"  writing      {writing:8.1f} CPU s  {megabytes(job.folder):8.2f} MB")
    print(f"  finding that it is done {1000 * looking / LOOKS:.2f} CPU ms", flush=True)


def timed(step: Callable[[], Value]) -> tuple[Value, float]:
    begun = time.process_time()
    return step(), time.process_time() - begun


def megabytes(path: Path) -> float:
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files) / 1e6


if __name__ == "__main__":
    main()
