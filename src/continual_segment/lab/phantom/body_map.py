"""The map between a patient and the reference man.

Anatomy is described once, for the reference man (`Atlas` coordinates). A patient is that body stretched,
bent and smoothly deformed: this file turns patient millimetres into atlas millimetres, where the solids are
evaluated, and back for single points. The map is continuous, so what touches in the atlas touches in every
patient.
"""

from __future__ import annotations

import numpy as np

from continual_segment.lab.phantom.patient import REFERENCE_HEIGHT_MM, Patient

NECK_BASE_Z = 466.0
"""Atlas z of the upper end-plate of T1: trunk below, neck and head above."""
MODES = 24


class BodyMap:
    """Patient <-> atlas coordinates, both (..., 3) in mm right, anterior, superior."""

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        stature = patient.height_mm / REFERENCE_HEIGHT_MM
        build = patient.bmi - 24.0
        narrow = 0.955 if patient.sex == "female" else 1.0
        self.trunk = stature
        self.neck = 0.5 * (stature + patient.head_scale)
        self.head = patient.head_scale
        width = narrow * stature**0.5 * (1 + 0.006 * build)
        depth = narrow * stature**0.5 * (1 + 0.008 * build)
        belly = depth * (1 + 0.010 * max(build, -2.0))
        hips = width * (1.045 if patient.sex == "female" else 1.0)
        head = patient.head_scale
        # rows: atlas z, scale of x, scale of y
        self.levels = np.array([-400.0, -150.0, -60.0, 30.0, 130.0, 280.0, 400.0, 470.0, 540.0, 800.0])
        self.scale_x = np.array(
            [hips, hips, hips, width, width, width, width, 0.5 * (width + head), head, head]
        )
        self.scale_y = np.array(
            [depth, depth, depth, belly, belly, depth, depth, 0.5 * (depth + head), head, head]
        )
        self._draw_modes()

    def _draw_modes(self) -> None:
        """The smooth deformation: a few long waves in random directions."""
        rng = np.random.default_rng([self.patient.seed, 2])
        direction = rng.normal(size=(MODES, 3))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        self.wave = direction * (2 * np.pi / rng.uniform(110.0, 380.0, (MODES, 1)))
        amplitude = rng.normal(size=(MODES, 3)) / np.linalg.norm(self.wave, axis=1, keepdims=True)
        amplitude *= self.patient.deformation_mm / np.sqrt((amplitude**2).sum(0) / 2)
        self.amplitude = amplitude
        self.lag = rng.uniform(0, 2 * np.pi, MODES)

    def to_atlas(self, points: np.ndarray) -> np.ndarray:
        x, y, z = np.moveaxis(np.asarray(points, float), -1, 0)
        atlas_z = self._atlas_height(z)
        forward, right = self._bend(atlas_z)
        atlas_x = (x - right) / np.interp(atlas_z, self.levels, self.scale_x)
        atlas_y = (y - forward) / np.interp(atlas_z, self.levels, self.scale_y)
        straight = np.stack([atlas_x, atlas_y, atlas_z], axis=-1)
        calm = np.interp(atlas_z, [450.0, 580.0], [1.0, 0.45])[..., None]  # a skull is stiff
        wobble = np.zeros_like(straight)
        for (a, b, c), amplitude, lag in zip(self.wave, self.amplitude, self.lag, strict=True):
            wobble += np.cos(a * atlas_x + b * atlas_y + c * atlas_z + lag)[..., None] * amplitude
        return straight + calm * wobble

    def to_patient(self, points: np.ndarray) -> np.ndarray:
        """Inverse of `to_atlas`, by correcting a first guess."""
        target = np.asarray(points, float)
        guess = target * [1.0, 1.0, self.trunk]
        for _ in range(25):
            guess = guess - (self.to_atlas(guess) - target) * 0.9
        return guess

    def _atlas_height(self, z: np.ndarray) -> np.ndarray:
        knots_atlas = np.array([-1000.0, NECK_BASE_Z, 590.0, 1500.0])
        steps = np.diff(knots_atlas) * [self.trunk, self.neck, self.head]
        knots = np.concatenate(
            [[knots_atlas[0] * self.trunk], knots_atlas[0] * self.trunk + np.cumsum(steps)]
        )
        return np.interp(z, knots, knots_atlas)

    def _bend(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How far the body at this height is bowed forwards and to the right."""
        p = self.patient
        chest = np.exp(-(((z - 330) / 120) ** 2))
        forward = p.lordosis_mm * np.exp(-(((z - 70) / 90) ** 2)) - p.kyphosis_mm * chest
        forward = forward + p.head_tilt * np.maximum(z - 500, 0)
        right = p.scoliosis_mm * (chest - 0.6 * np.exp(-(((z - 100) / 90) ** 2)))
        return forward, right
