"""Draw the pictures of the phantom's page: one patient at fine and at laptop resolution, and every dataset.

python benchmarks/phantom_pictures.py docs/pictures
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from continual_segment.lab.phantom import DATASETS
from continual_segment.lab.phantom.organ_lists import CHEST, HEADNECK, TOTALSEG, label_voxels
from continual_segment.lab.phantom.patient import draw_patient
from continual_segment.lab.phantom.scanner import Scan, Scanner, majority, place_patient, scan_patient
from continual_segment.lab.phantom.write import case_seed, make_scan

ORGANS = tuple(dict.fromkeys((*TOTALSEG, *CHEST, *HEADNECK)))
COLOURS = np.concatenate([np.zeros((1, 3)), np.random.default_rng(3).uniform(0.25, 1.0, (255, 3))])


def body_scan(spacing_mm: float) -> Scan:
    patient = replace(draw_patient(4), phase="venous")
    scanner, rng = Scanner(noise_hu=9.0, turn_degrees=0.5), np.random.default_rng(4)
    view = place_patient(patient, -210.0, 745.0, 215.0, (spacing_mm,) * 3, scanner, rng)
    return scan_patient(patient, view, scanner, rng)


def cut(voxels: np.ndarray, axis: int, share: float) -> np.ndarray:
    """A slice as a radiologist looks at it: head up, patient's right on the left."""
    return np.take(voxels, int(share * voxels.shape[axis]), axis)[::-1, ::-1]


def draw(axis: plt.Axes, hu: np.ndarray, labels: np.ndarray | None) -> None:
    axis.imshow(np.clip((hu + 200) / 500, 0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    if labels is not None:
        shown = np.dstack([COLOURS[labels], np.where(labels > 0, 0.6, 0)])
        axis.imshow(shown, interpolation="nearest")
    axis.axis("off")


def save(figure: plt.Figure, path: Path, dpi: int) -> None:
    figure.savefig(path, dpi=dpi)
    plt.close(figure)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # under 300 kB


def draw_body(path: Path, spacing_mm: float) -> None:
    scan = body_scan(spacing_mm)
    labels = majority(label_voxels(scan.body, ORGANS), scan.split)
    long = [(1, 0.40), (1, 0.56), (2, 0.5)]
    short = [(0, 0.90), (0, 0.66), (0, 0.56), (0, 0.42), (0, 0.10)]
    figure = plt.figure(figsize=(11, 9), facecolor="black")
    sides = {"left": 0.005, "right": 0.995, "wspace": 0.02}
    upper = figure.add_gridspec(1, 6, bottom=0.36, top=0.995, **sides)
    lower = figure.add_gridspec(
        2, 5, left=0.005, right=0.995, bottom=0.005, top=0.35, wspace=0.02, hspace=0.02
    )
    for column, (axis, share) in enumerate(long):
        for row, overlay in enumerate((None, labels)):
            shown = None if overlay is None else cut(overlay, axis, share)
            draw(figure.add_subplot(upper[0, 2 * column + row]), cut(scan.hu, axis, share), shown)
    for column, (axis, share) in enumerate(short):
        for row, overlay in enumerate((None, labels)):
            shown = None if overlay is None else cut(overlay, axis, share)
            draw(figure.add_subplot(lower[row, column]), cut(scan.hu, axis, share), shown)
    save(figure, path, 80)


def draw_datasets(path: Path, spacing_mm: float) -> None:
    figure, axes = plt.subplots(len(DATASETS), 6, figsize=(11, 2 * len(DATASETS)), facecolor="black")
    for row, dataset in zip(axes, DATASETS.values(), strict=True):
        scan = make_scan(dataset, case_seed(0, dataset, 2), (spacing_mm,) * 3)
        labels = majority(label_voxels(scan.body, dataset.organs), scan.split)
        for plane in range(3):
            draw(row[2 * plane], cut(scan.hu, plane, 0.5), None)
            draw(row[2 * plane + 1], cut(scan.hu, plane, 0.5), cut(labels, plane, 0.5))
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.995, 0.02, 0.02)
    save(figure, path, 75)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    draw_body(folder / "phantom_laptop.png", 6.0)
    draw_body(folder / "phantom_body.png", 2.6)
    draw_datasets(folder / "phantom_datasets.png", 6.0)
