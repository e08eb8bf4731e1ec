"""What a million scans would cost, from figures of single scans in results/performance.

    python benchmarks/archive_plan.py > results/performance/archive_plan.txt

Nothing is measured here: seconds, memory and bytes of one scan are read from segment_vs_nnunet.txt and
scan_cost.txt and multiplied. Throughput is taken to grow in proportion to the cores.
"""

from __future__ import annotations

import re
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results" / "performance"
SCANS, CORES = 1_000_000, 1000
THREADS = 2
"""Of the runs in segment_vs_nnunet.txt."""
SLICES, PIXELS, BYTES = 200, 512, 2
"""Of the scan in scan_cost.txt."""


def main() -> None:
    whole = (RESULTS / "segment_vs_nnunet.txt").read_text()
    parts = (RESULTS / "scan_cost.txt").read_text()
    wide, long = (rows(whole, title) for title in ("96 slices of 256", "270 x 160 x 160"))
    core_seconds = {
        name: THREADS * scan["ours, 4 packs, eager"] for name, scan in (("wide", wide), ("long", long))
    }
    for name, seconds in core_seconds.items():
        hours = SCANS * seconds / 3600
        print(
            f"{name}: {seconds:.0f} core-seconds a scan; {SCANS:,} scans {round(hours, -3):.0f} core-hours, "
            f"{hours / 8766:.0f} core-years, {hours / 24 / CORES:.1f} days of {CORES} cores, "
            f"{CORES / seconds:.1f} scans a second"
        )
    for name, scan in (("wide", wide), ("long", long)):
        left = scan["ours, skip, eager"] / scan["ours, 4 packs, eager"]
        print(f"{name}: skipping saves {100 * (1 - left):.0f} %")
    reading, segmenting, writing = (part(parts, name)[0] for name in ("reading", "segmenting", "writing"))
    read_mb, written_mb = part(parts, "reading")[1], part(parts, "writing")[1]
    print(f"reading and writing: {reading + writing:.1f} CPU seconds, rounded {reading + writing:.0f}")
    print(f"a scan of {SLICES} x {PIXELS} x {PIXELS}: {SLICES * PIXELS**2 * BYTES / 1e6:.0f} MB uncompressed")
    for name, seconds in core_seconds.items():
        rate = CORES / seconds
        print(f"{name}: {rate * read_mb:.0f} MB read, {rate * written_mb:.0f} MB written a second")
    print(f"memory of a scan: up to {peak_gib(whole):.2f} GiB, {peak_gib(whole) * 2**30 / 1e9:.0f} GB")
    print(f"in all: {SCANS * read_mb / 1e6:.0f} TB read, {SCANS * written_mb / 1e6:.2f} TB written")
    small = reading + segmenting + writing
    print(
        f"small network: {small:.0f} CPU seconds a scan, {CORES / small:.0f} scans a second, "
        f"{CORES / small * read_mb / 1000:.1f} GB read a second"
    )


def rows(text: str, title: str) -> dict[str, float]:
    """Seconds by row of the first table with this title."""
    table = text[text.index(f"\n{title}") :].strip().split("\n\n")[0]
    found = re.findall(r"^(.+?) {2,}(\d+\.\d)", table, re.MULTILINE)
    return {name.strip(): float(seconds) for name, seconds in found}


def peak_gib(text: str) -> float:
    """The largest of our networks without compilation."""
    return max(float(found) for found in re.findall(r"^ours, .*eager .*\) +(\d\.\d\d) ", text, re.MULTILINE))


def part(text: str, name: str) -> tuple[float, float]:
    """CPU seconds and megabytes of a part; 0 where it has none."""
    found = re.search(rf"{name} +([\d.]+) CPU s(?: +([\d.]+) MB)?", text)
    assert found, name
    return float(found[1]), float(found[2] or 0)


if __name__ == "__main__":
    main()
