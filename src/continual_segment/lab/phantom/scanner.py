"""A scanner: from a painted body to Hounsfield units.

The body is painted on a grid finer than the scan's, filled with the tissues' values and their texture, laid
on a table, averaged to the scan's voxels (partial volume), blurred by the reconstruction kernel, and made
noisy as a wide body makes it. Labels take the structure that fills most of a voxel.

In:  a patient, the part of the body to scan, the scanner's habits
Out: Scan: int16 HU, and the truth in structures and tissues
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from continual_segment.lab.phantom.anatomy import paint_patient
from continual_segment.lab.phantom.body_map import BodyMap
from continual_segment.lab.phantom.landmarks import REGION_STARTS, body_line_y
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.solids import turn_matrix
from continual_segment.lab.phantom.structure import Body
from continual_segment.lab.phantom.tissues import TEXTURE, tissue_values
from continual_segment.volume import Grid

PAINTED_MM = 2.7
"""A scan's voxels are split until they are no larger than this: what partial volume is computed from."""
MOST_PARTS = 2
"""Along an axis; eight samples are enough for a voxel that is too coarse for fine parts anyway."""


@dataclass(frozen=True)
class Scanner:
    """How one hospital scans: what makes its images differ from another's."""

    kernel_mm: float = 0.8
    """Blur of the reconstruction, as a standard deviation in the slice plane."""
    noise_hu: float = 11.0
    """Noise of a patient 330 mm wide at 3 mm voxels; it doubles some 90 mm further."""
    contrast: float = 1.0
    """Amount of contrast agent relative to usual."""
    offset_hu: float = 6.0
    """Spread of the calibration error between scans."""
    turn_degrees: float = 2.0
    """Spread of how the patient lies, about each axis."""


@dataclass(frozen=True)
class FieldOfView:
    """The box that is scanned, in scanner millimetres, and how the patient lies in it."""

    grid: Grid
    pose: np.ndarray
    """4x4: scanner to patient millimetres."""


@dataclass(frozen=True)
class Scan:
    """One scan with its truth."""

    hu: np.ndarray
    """(z, y, x), int16."""
    grid: Grid
    body: Body
    """Painted on the finer grid that `split` voxels of make one of the scan's along each axis."""
    split: tuple[int, int, int]
    region_starts_mm: dict[str, float]
    """Height in the scan's own millimetres at which each body part begins, from below."""


def place_patient(
    patient: Patient,
    low: float,
    high: float,
    half_width_mm: float,
    spacing_mm: tuple[float, float, float],
    scanner: Scanner,
    rng: np.random.Generator,
) -> FieldOfView:
    """The box from atlas height `low` to `high` around a patient who lies slightly askew."""
    turn = turn_matrix(np.clip(rng.normal(0, scanner.turn_degrees, 3), -5, 5))
    pivot = BodyMap(patient).to_patient(np.array([0.0, 0.0, 0.5 * (low + high)]))
    shift = rng.normal(0, [6.0, 4.0, 0.0])
    pose = np.eye(4)
    pose[:3, :3] = turn
    pose[:3, 3] = pivot - turn @ (pivot + shift)
    ends = spine_heights(patient, pose, np.array([low, high]))
    depth = _depth_mm(patient, low, high)
    middle = pivot + shift
    start = np.array([middle[0] - half_width_mm, middle[1] - depth[0], ends[0]])
    stop = np.array([middle[0] + half_width_mm, middle[1] + depth[1], ends[1]])
    spacing = np.array(spacing_mm)[::-1]
    count = np.maximum(2, np.round((stop - start) / spacing)).astype(int)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = start + spacing / 2
    return FieldOfView(Grid((int(count[2]), int(count[1]), int(count[0])), affine), pose)


def _depth_mm(patient: Patient, low: float, high: float) -> tuple[float, float]:
    """How far behind and before the body's axis the box reaches: table, back and belly inside."""
    build = 1 + 0.02 * max(patient.bmi - 24, -3)
    if low > 380:  # head and neck only
        return 150.0, 128.0
    return 128 * build + patient.fat_mm + 32, 108 * build + 1.2 * patient.fat_mm + 26 + (
        10 if high > 250 else 0
    )


def spine_heights(patient: Patient, pose: np.ndarray, atlas_z: np.ndarray) -> np.ndarray:
    """Scanner z at which the spine passes these atlas heights."""
    atlas = np.stack([np.zeros_like(atlas_z, float), body_line_y(atlas_z), atlas_z], axis=-1)
    points = BodyMap(patient).to_patient(atlas) - pose[:3, 3]
    return (points @ pose[:3, :3])[..., 2]  # the inverse of a rotation is its transpose


def scan_patient(patient: Patient, view: FieldOfView, scanner: Scanner, rng: np.random.Generator) -> Scan:
    """Scan the part of the patient in the field of view."""
    grid = view.grid
    a, b, c = (min(int(np.ceil(mm / PAINTED_MM - 1e-6)), MOST_PARTS) for mm in grid.spacing_mm)
    fine = grid.with_shape((a * grid.shape[0], b * grid.shape[1], c * grid.shape[2]))
    body = paint_patient(patient, fine, view.pose)
    values = tissue_values(body.tissue_names, patient, scanner.contrast, rng)
    hu = _fill(body, values, rng)
    _lay_on_table(hu, body, fine)
    hu = _average(hu, (a, b, c))
    hu = _reconstruct(hu, grid, patient, scanner, rng)
    starts = np.array([z for z in REGION_STARTS.values() if np.isfinite(z)])
    heights = [-np.inf, *spine_heights(patient, view.pose, starts).tolist()]
    return Scan(hu, grid, body, (a, b, c), dict(zip(REGION_STARTS, heights, strict=True)))


def _fill(body: Body, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Tissue values with their texture: one smooth random field, as strong as the tissue is mottled."""
    noise = rng.standard_normal(body.tissues.shape, dtype=np.float32)
    field = ndimage.gaussian_filter(noise, 0.9, truncate=2.5)
    field *= np.float32(1 / field.std())
    mottle = np.array([TEXTURE.get(name, 3.0) for name in body.tissue_names], np.float32)
    bubbles = (body.tissues == body.tissue_names.index("stool")) & (field > 1.1)
    hu = mottle.take(body.tissues)
    hu *= field
    hu += values.take(body.tissues)
    hu[bubbles] = -450
    return hu


def _lay_on_table(hu: np.ndarray, body: Body, grid: Grid) -> None:
    """A curved shell of carbon fibre around foam, just below the lowest part of the back."""
    outside = body.structures == 0
    rows = np.flatnonzero((~outside).any(axis=(0, 2)))
    if not len(rows):
        return
    x = grid.affine[0, 3] + grid.affine[0, 0] * np.arange(grid.shape[2])
    y = grid.affine[1, 3] + grid.affine[1, 1] * np.arange(grid.shape[1])
    top = y[rows[0]] - 4 + (x / 30) ** 2 * 0.35  # mm; a shallow trough
    below = top[None, :] - y[:, None]
    table = np.where((below > 0) & (below < 4) | (below > 34) & (below < 38), 60.0, np.nan)
    table = np.where((below >= 4) & (below <= 34), -880.0, table).astype(np.float32)
    present = np.isfinite(table) & (np.abs(x) < 235)[None, :]
    slab = np.broadcast_to(present, hu.shape) & outside
    hu[slab] = np.broadcast_to(table, hu.shape)[slab]


def _average(values: np.ndarray, split: tuple[int, ...]) -> np.ndarray:
    for axis, k in enumerate(split):
        shape = list(values.shape)
        shape[axis : axis + 1] = [shape[axis] // k, k]
        values = values.reshape(shape).mean(axis + 1, dtype=np.float32)
    return values


def _reconstruct(
    hu: np.ndarray, grid: Grid, patient: Patient, scanner: Scanner, rng: np.random.Generator
) -> np.ndarray:
    spacing = grid.spacing_mm
    sigma = [0.35, *(scanner.kernel_mm / mm for mm in spacing[1:])]
    hu = ndimage.gaussian_filter(hu, sigma)
    rows = (hu > -500).sum(axis=2) * spacing[2]
    width_mm = float(np.percentile(rows.max(axis=1), 70))
    finer = (3.0 / np.prod(spacing) ** (1 / 3)) ** 0.7  # larger voxels gather more photons
    noise_hu = scanner.noise_hu * finer * 2 ** ((width_mm - 330) / 90) * rng.uniform(0.85, 1.2)
    noise = ndimage.gaussian_filter(rng.standard_normal(hu.shape, dtype=np.float32), [0.0, 0.5, 0.5])
    hu = hu + noise * np.float32(np.clip(noise_hu, 1.5, 60) / noise.std())
    cupping = _smooth_field(hu.shape, rng) * np.float32(4.0)
    hu = hu + cupping + np.float32(np.clip(rng.normal(0, scanner.offset_hu), -20, 20))
    return np.clip(np.round(hu), -1024, 3071).astype(np.int16)


def _smooth_field(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Slow shading across the image, as beam hardening leaves it."""
    coarse = rng.standard_normal((4, 4, 4)).astype(np.float32)
    return ndimage.zoom(coarse, [n / 4 for n in shape], order=1, grid_mode=True, mode="nearest")


def majority(labels: np.ndarray, split: tuple[int, int, int]) -> np.ndarray:
    """The label that fills most of each voxel; organs win over background from 7/16 on."""
    if split == (1, 1, 1):
        return labels
    (a, b, c), (z, y, x) = split, labels.shape
    cells = labels.reshape(z // a, a, y // b, b, x // c, c).transpose(1, 3, 5, 0, 2, 4).reshape(a * b * c, -1)
    result = cells[0].copy()
    mixed = np.flatnonzero((cells != cells[0]).any(0))
    cells = cells[:, mixed]
    votes = np.stack([(cells == one).sum(0, dtype=np.float32) for one in cells])
    votes += np.where(cells > 0, len(cells) / 8, 0).astype(np.float32)
    best = votes.argmax(0)
    result[mixed] = np.take_along_axis(cells, best[None], 0)[0]
    return result.reshape(z // a, y // b, x // c)
