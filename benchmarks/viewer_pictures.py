"""Make the pictures of the viewer in the documentation: a phantom, before and after packs were added.

python benchmarks/viewer_pictures.py DEMO/model WORK docs/pictures

DEMO is the folder of a `conseg demo`. A phantom patient that no pack was trained on is segmented by the
model's first pack alone and by all of its packs; both results are opened in the viewer. WORK keeps scan and
labels, so that a second run only takes pictures. Needs Chromium and Playwright.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from continual_segment import segment
from continual_segment.clinic.outputs import OutputConfig
from continual_segment.files import write_labels, write_scan
from continual_segment.lab.phantom.organ_lists import DEMO, label_voxels
from continual_segment.lab.phantom.patient import draw_patient
from continual_segment.lab.phantom.scanner import Scanner, majority, place_patient, scan_patient
from continual_segment.model import Model
from continual_segment.viewer.view import open_server
from continual_segment.volume import LabelMap, Volume

SEED, SPACING_MM = 71, 3.75
FIRST_PACK = "totalseg"
ORGANS = tuple(dict.fromkeys((*DEMO[FIRST_PACK], *DEMO["headneck"], "sternum")))
SIZE = {"width": 1280, "height": 760}
OPTIONS = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]
CAPTION = """
(text) => {
  document.getElementById("caption")?.remove();
  const box = Object.assign(document.createElement("div"), { id: "caption", textContent: text });
  Object.assign(box.style, { position: "absolute", left: "50%", bottom: "14px", transform: "translateX(-50%)",
    padding: "6px 16px", borderRadius: "16px", background: "rgb(77 163 255 / 92%)", color: "#06121f",
    font: "600 17px system-ui", zIndex: 5, whiteSpace: "nowrap" });
  document.getElementById("stage").append(box);
}"""


def make_patient(folder: Path) -> None:
    """A scan from the upper abdomen to the head, with its truth."""
    patient = replace(draw_patient(SEED), phase="venous", arms="down")
    scanner, rng = Scanner(noise_hu=9.0, turn_degrees=0.5), np.random.default_rng(SEED)
    view = place_patient(patient, 60.0, 745.0, 215.0, (SPACING_MM,) * 3, scanner, rng)
    scan = scan_patient(patient, view, scanner, rng)
    labels = majority(label_voxels(scan.body, ORGANS), scan.split)
    names = dict(enumerate(ORGANS, start=1))
    write_labels(folder / "truth" / "phantom.nii.gz", LabelMap(labels, scan.grid, names))
    write_scan(folder / "phantom.nii.gz", Volume(scan.hu, scan.grid))


def make_results(model: Path, folder: Path) -> None:
    """Labels of the first pack, and of all packs, with their reasons."""
    outputs = OutputConfig(explain=True)
    for name, packs in (("before", [FIRST_PACK]), ("after", None)):
        if not (folder / name).exists():
            segment(folder / "phantom.nii.gz", model, folder / name, outputs=outputs, packs=packs)


@contextmanager
def page_of(paths: list[Path], model: Path) -> Iterator[Page]:
    """The viewer in Chromium, dark, its first case drawn."""
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        server = open_server(paths, model, Path(temporary))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        page = chromium.new_page(viewport=SIZE, color_scheme="dark")
        page.set_default_timeout(600_000)
        page.goto(server.address)
        page.wait_for_selector("body[data-state=ready]")
        yield page
        chromium.close()
        server.shutdown()


def picture(page: Page) -> Image.Image:
    page.wait_for_timeout(1500)
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def save(shot: Image.Image, path: Path) -> None:
    shot.save(path, optimize=True)


def save_animation(before: Image.Image, after: Image.Image, path: Path) -> None:
    """The two in turn, with short cross-fades."""
    fades = [Image.blend(before, after, share) for share in (0.25, 0.5, 0.75)]
    frames = [before, *fades, after, *reversed(fades)]
    times = [2200, 70, 70, 70, 3200, 70, 70, 70]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=90, method=4
    )


def take_pictures(model: Path, folder: Path, out: Path) -> None:
    organs = {
        "before": len(DEMO[FIRST_PACK]),
        "after": len(Model.open(model).organs),
    }
    paths = [folder / "phantom.nii.gz", *(folder / name for name in ("truth", "before", "after"))]
    with page_of(paths, model) as page:
        page.locator("#map").select_option("2")
        page.locator(".organ-name", has_text="brainstem").click()
        page.mouse.move(5, 5)
        still = picture(page)
        save(still, out / "viewer.png")
        page.evaluate(CAPTION, f"After adding three packs: {organs['after']} organs")
        after = picture(page)
        page.locator("#map").select_option("1")
        page.evaluate(CAPTION, f"Before: one pack, {organs['before']} organs")
        save_animation(picture(page), after, out / "add_packs.webp")
        page.evaluate("() => document.getElementById('caption').remove()")
        page.click("[data-panel=compare]")
        page.locator("#compared-map").select_option("2")
        page.wait_for_selector(".score.mean")
        page.click("[data-mode=differences]")
        save(picture(page), out / "viewer_compare.png")
        page.goto(page.url + "model.html")
        page.wait_for_selector("body[data-state=ready]")
        save(picture(page), out / "viewer_model.png")


def main(model: Path, folder: Path, out: Path) -> None:
    if not (folder / "phantom.nii.gz").exists():
        make_patient(folder)
    make_results(model, folder)
    take_pictures(model, folder, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
