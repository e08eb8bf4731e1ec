"""The whole body in painting order, and the painter's entry point.

Order: skin, fat and plain muscle; labelled muscles; lungs, diaphragm and mediastinal fat; head and neck;
abdominal organs; tumours of all these; heart, airways, the vessels of lungs and belly, esophagus; bones, so
that nothing soft cuts into them, ribs after the vertebrae they touch; last the great vessels, which find
their way past the bones (the vertebral arteries through the holes of the neck vertebrae).
"""

from __future__ import annotations

import numpy as np

from continual_segment.lab.phantom import (
    abdomen,
    body,
    chest,
    head,
    heart,
    limbs,
    spine,
    thorax,
    tumours,
    vessels,
)
from continual_segment.lab.phantom.body_map import BodyMap
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.structure import Body, Canvas, Structure, paint
from continual_segment.volume import Grid

LATTICE_MM = 14.0
"""The map between patient and atlas is smooth: exact at points this far apart, linear between."""


def structures_of(patient: Patient) -> list[Structure]:
    """All parts of a patient's body, in the order they are painted."""
    return [
        *body.body_structures(patient),
        *limbs.muscle_structures(patient),
        *chest.lung_structures(patient),
        *vessels.lung_vessel_structures(patient),
        *tumours.lung_tumour_structures(patient),
        *head.head_structures(patient),
        *head.neck_structures(patient),
        *abdomen.abdomen_structures(patient),
        *tumours.soft_tumour_structures(patient),
        *heart.heart_structures(patient),
        *chest.airway_structures(patient),
        *vessels.pulmonary_structures(patient),
        *vessels.abdominal_vessel_structures(patient),
        *chest.esophagus_structures(patient),
        *limbs.bone_structures(patient),
        *spine.spine_structures(),
        *thorax.thorax_structures(patient),
        *vessels.vein_structures(patient),
        *vessels.neck_artery_structures(patient),
        *vessels.aorta_structures(patient),
    ]


def paint_patient(patient: Patient, grid: Grid, pose: np.ndarray | None = None) -> Body:
    """Structure and tissue of every voxel; `pose` (4x4) turns scanner into patient millimetres."""
    return paint(Canvas(*atlas_coordinates(patient, grid, pose)), structures_of(patient))


def atlas_coordinates(
    patient: Patient, grid: Grid, pose: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Atlas x, y, z of every voxel."""
    ticks = [_ticks(count, step) for count, step in zip(grid.shape, grid.spacing_mm, strict=True)]
    k, j, i = np.meshgrid(*ticks, indexing="ij")
    to_patient = grid.affine if pose is None else pose @ grid.affine
    index = (i, j, k)
    points = sum(to_patient[:3, axis] * index[axis][..., None] for axis in range(3)) + to_patient[:3, 3]
    coarse = BodyMap(patient).to_atlas(points).astype(np.float32)
    x, y, z = (_refine(coarse[..., axis], ticks, grid.shape) for axis in range(3))
    return x, y, z


def _ticks(count: int, step_mm: float) -> np.ndarray:
    """Lattice positions along one axis, in voxels, first and last voxel included."""
    return np.linspace(0, count - 1, max(int(np.ceil((count - 1) * step_mm / LATTICE_MM)) + 1, 2))


def _refine(values: np.ndarray, ticks: list[np.ndarray], shape: tuple[int, int, int]) -> np.ndarray:
    """Linear interpolation from lattice to voxels, one axis after the other."""
    for axis, count in enumerate(shape):
        step = (count - 1) / (len(ticks[axis]) - 1) if count > 1 else 1.0
        place = np.arange(count) / step
        left = np.minimum(place.astype(int), len(ticks[axis]) - 2)
        share = (place - left).astype(np.float32).reshape([-1 if a == axis else 1 for a in range(3)])
        rise = np.take(np.diff(values, axis=axis), left, axis)
        rise *= share
        rise += np.take(values, left, axis)
        values = rise
    return np.ascontiguousarray(values)
