"""The heart: four chambers, the muscle of the left ventricle, and where the great vessels join.

Its long axis runs from the base (behind, right, above) to the apex (front, left, below). All places are
relative to the middle of the heart, which follows the diaphragm and the patient's own heart size.
"""

from __future__ import annotations

import numpy as np

from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.solids import Ellipsoid, HalfSpace, Solid, Vector
from continual_segment.lab.phantom.structure import Structure
from continual_segment.lab.phantom.sweeps import Tube

MIDDLE = (-12.0, 32.0, 298.0)
TO_APEX = (0.0, 38.0, 142.0)
"""Turn of an ellipsoid whose first axis runs to the apex."""
BASE = (6.0, -14.0, 14.0)
"""Plane of the valves of the left ventricle, with its normal:"""
BASE_NORMAL = (0.70, -0.52, 0.5)
AORTIC_ROOT = (2.0, -6.0, 22.0)
PULMONARY_VALVE = (-12.0, 22.0, 44.0)
ATRIA = {"left": (8.0, -40.0, 24.0), "right": (50.0, -4.0, -2.0)}


def _at(patient: Patient, offset: Vector) -> np.ndarray:
    """A place in the heart, in atlas millimetres."""
    x, y, z = patient.shift_of("heart")
    shift = np.array([x, y, 0.5 * z + 0.55 * patient.breath_mm])
    return MIDDLE + shift + patient.scale_of("heart") * np.array(offset)


def _chamber(patient: Patient, offset: Vector, half: Vector, turn: Vector = (0, 0, 0)) -> Solid:
    return Ellipsoid(_at(patient, offset), patient.scale_of("heart") * np.array(half), turn)


def aortic_root(patient: Patient) -> np.ndarray:
    return _at(patient, AORTIC_ROOT)


def pulmonary_valve(patient: Patient) -> np.ndarray:
    return _at(patient, PULMONARY_VALVE)


def atrium(patient: Patient, side: str) -> np.ndarray:
    """Middle of an atrium: where veins end."""
    return _at(patient, ATRIA[side])


def pericardium(patient: Patient) -> Solid:
    ventricles = _chamber(patient, (-8, 2, -4), (68, 46, 52), TO_APEX)
    return ventricles | _chamber(patient, (10, -8, 18), (52, 42, 36))


def _right_ventricle(patient: Patient) -> Solid:
    """A crescent around the left one, with its outflow up to the pulmonary valve."""
    size = patient.scale_of("heart")
    path = [((-14, 36, 0), 20), ((-14, 32, 24), 17), (PULMONARY_VALVE, 14)]
    outflow = Tube([(*_at(patient, offset), size * radius) for offset, radius in path])
    return _chamber(patient, (-4, 28, -12), (54, 30, 34), (0, 24, 152)) | outflow


def heart_structures(patient: Patient) -> list[Structure]:
    wall_mm = 9.5 * patient.scale_of("myocardium")
    outer = _chamber(patient, (-26, 10, -8), (55, 37, 38), TO_APEX)
    below_valves = HalfSpace(_at(patient, BASE), BASE_NORMAL)
    left_atrium = _chamber(patient, ATRIA["left"], (38, 19, 25), (0, 0, 8))
    right_atrium = _chamber(patient, ATRIA["right"], (27, 31, 38), (0, -8, 0))
    return [
        Structure("pericardium", pericardium(patient), "pericardial_fat"),
        Structure("heart_atrium_left", left_atrium, "left_blood"),
        Structure("heart_atrium_right", right_atrium, "right_blood"),
        Structure("heart_ventricle_right", _right_ventricle(patient), "right_blood"),
        Structure("heart_myocardium", outer & below_valves, "myocardium"),
        Structure("heart_ventricle_left", outer.grown(-wall_mm) & below_valves, "left_blood"),
    ]
