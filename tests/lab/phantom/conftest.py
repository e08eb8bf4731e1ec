"""Phantom bodies that several tests look at."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from continual_segment.lab.phantom.anatomy import paint_patient
from continual_segment.lab.phantom.patient import REFERENCE, Patient, draw_patient
from continual_segment.lab.phantom.structure import Body
from continual_segment.volume import Grid

SPACING_MM = 4.0


def box_grid(low: tuple[float, ...], high: tuple[float, ...], spacing_mm: float = SPACING_MM) -> Grid:
    """Voxels between two corners (x, y, z) in patient millimetres."""
    count = np.round((np.array(high) - low) / spacing_mm).astype(int)
    affine = np.diag([spacing_mm, spacing_mm, spacing_mm, 1.0])
    affine[:3, 3] = np.array(low) + spacing_mm / 2
    return Grid((int(count[2]), int(count[1]), int(count[0])), affine)


def whole_body(patient: Patient, spacing_mm: float = SPACING_MM) -> Body:
    return paint_patient(patient, box_grid((-230, -180, -260), (230, 180, 790), spacing_mm))


@pytest.fixture(scope="session", name="box_grid")
def box_grid_fixture() -> Callable[..., Grid]:
    return box_grid


@pytest.fixture(scope="session")
def reference_body() -> Body:
    return whole_body(REFERENCE)


@pytest.fixture(scope="session", params=[21, 34])
def drawn_body(request: pytest.FixtureRequest) -> Body:
    """Two patients as the datasets draw them: bent, stretched, deformed."""
    return whole_body(draw_patient(request.param))
