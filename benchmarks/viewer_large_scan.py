"""What the viewer does with 512 x 512 x 800 voxels and 60 organs: CPU time, memory, what the browser gets.

    python benchmarks/viewer_large_scan.py WORK [--profile]
    python benchmarks/viewer_large_scan.py WORK --browser

The first prepares the scan once per bound of the browser's voxels, each in a process of its own. The second
opens it in Chromium without a graphics card (SwiftShader) and uses the page. Seconds are CPU time: of one
thread of the server, or of all processes of Chromium together.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import os
import pstats
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from continual_segment.files import write_labels, write_scan
from continual_segment.organs import known_organs
from continual_segment.viewer.bounds import MOST_VOXELS, MOST_WITHOUT_GRAPHICS
from continual_segment.viewer.cases import find_cases
from continual_segment.viewer.prepared_view import prepare_view
from continual_segment.viewer.view import open_server
from continual_segment.volume import Grid, LabelMap, Volume

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHAPE = (800, 512, 512)
AFFINE = np.diag([0.8, 0.8, 1.0, 1.0])
ORGANS = 60


def make_scan(folder: Path) -> None:
    """A box of soft tissue with a ball for every organ."""
    voxels, labels = np.full(SHAPE, -1000, np.int16), np.zeros(SHAPE, np.uint8)
    voxels[:, 60:-60, 60:-60] = 40
    rng, organs = np.random.default_rng(0), known_organs()[:ORGANS]
    for organ in organs:
        radius = int(rng.integers(15, 45))
        centre = rng.integers([60, 120, 120], [740, 390, 390])
        box = tuple(slice(int(at) - radius, int(at) + radius) for at in centre)
        ball = ((np.indices((2 * radius,) * 3) - radius) ** 2).sum(axis=0) < radius**2
        labels[box][ball], voxels[box][ball] = organ.id, 60 + organ.id
    grid = Grid(SHAPE, AFFINE)
    write_labels(folder / "labels.nii.gz", LabelMap(labels, grid, {organ.id: organ.name for organ in organs}))
    write_scan(folder / "ct.nii", Volume(voxels, grid))


def measure(folder: Path, most_voxels: int, profile: bool) -> None:
    (case,) = find_cases([folder / "ct.nii", folder / "labels.nii.gz"])
    profiler, started = cProfile.Profile(), time.process_time()
    if profile:
        profiler.enable()
    view = prepare_view(case, folder / str(most_voxels), most_voxels)
    profiler.disable()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    size = sum(path.stat().st_size for path in view.files.values()) / 1e6
    print(
        f"at most {most_voxels} voxels: {view.data['size_shown']}, {size:.0f} MB to the browser; "
        f"{seconds:.1f} s, peak {peak:.1f} GB"
    )
    if profile:
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(25)


OPTIONS = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"


def browse(folder: Path) -> None:
    """Open the scan in Chromium and print what every action costs there."""
    from playwright.sync_api import Response, sync_playwright

    sent = 0

    def count(answer: Response) -> None:
        nonlocal sent
        sent += int(answer.headers.get("content-length", 0))

    def cost(page: Page, action: Callable[[], object]) -> float:
        before = seconds_below()
        action()
        page.evaluate(TWO_FRAMES)  # answered when the page has drawn
        return seconds_below() - before

    with tempfile.TemporaryDirectory() as own, sync_playwright() as playwright:
        server = open_server([folder / "ct.nii", folder / "labels.nii.gz"], None, Path(own))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        page = chromium.new_page(viewport={"width": 1280, "height": 760})
        page.set_default_timeout(3_600_000)
        page.on("response", count)
        started = seconds_below()
        page.goto(server.address)
        page.wait_for_selector("body[data-state=ready]")
        page.evaluate(TWO_FRAMES)  # else the first action would wait for, and be charged with, what is drawn
        print(f"{page.inner_text('#notes')}\n{sent / 1e6:.0f} MB sent", flush=True)
        print(f"ready: {seconds_below() - started:.1f} s", flush=True)
        actions = {
            "next slice": lambda: page.keyboard.press("ArrowUp"),
            "next slice by the wheel": lambda: turn_wheel(page),
            "jump to an organ": lambda: page.locator(".organ-name").nth(3).click(),
            "hide an organ": lambda: page.locator(".eye").nth(3).click(),
            "another window": lambda: page.keyboard.press("w"),
            "one plane alone": lambda: page.keyboard.press("2"),
            "next slice of it": lambda: page.keyboard.press("ArrowUp"),
        }
        for name, action in actions.items():
            print(f"{name}: {cost(page, action):.1f} s", flush=True)
        chromium.close()
        server.shutdown()


def turn_wheel(page: Page) -> None:
    """One notch, over the axial plane."""
    stage = page.locator("#planes").bounding_box()
    assert stage is not None
    page.mouse.move(stage["x"] + 0.2 * stage["width"], stage["y"] + 0.2 * stage["height"])
    page.mouse.wheel(0, 120)


def seconds_below() -> float:
    """CPU time of all running processes that this one, or one below it, has started; Linux alone."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:  # it ended
            continue
        parents[int(path.parent.name)], ticks[int(path.parent.name)] = (
            int(fields[1]),
            int(fields[11]) + int(fields[12]),
        )
    below = {os.getpid()}
    for _ in range(8):  # deeper than Chromium's processes are
        below |= {process for process, parent in parents.items() if parent in below}
    return sum(ticks[process] for process in below - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    parser.add_argument("--browser", action="store_true", help="open it in Chromium")
    args = parser.parse_args()
    if not (args.work / "ct.nii").exists():
        make_scan(args.work)
    if args.browser:
        browse(args.work)
        return
    for most_voxels in (MOST_VOXELS, MOST_WITHOUT_GRAPHICS):
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(args.work, most_voxels, args.profile)
        )
        process.start()
        process.join()


if __name__ == "__main__":
    main()
