"""The slices that DICOM results refer to, and labels cut along them.

A segmentation or contour in DICOM names the image it belongs to. Labels may have been made on another grid,
because the gantry was tilted or slices were missing; so every slice takes the labels in its own plane.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from continual_segment.files.dicom.headers import text
from continual_segment.files.dicom.series import Frame, Series
from continual_segment.files.grids import LPS_TO_RAS, plane_of
from continual_segment.volume import LabelMap

TO_RAS = np.diag(LPS_TO_RAS)[:3]
REFERRED = ["SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"]


def planes(labels: LabelMap, series: Series) -> Iterator[np.ndarray]:
    """Labels (row, column) on every frame of a series."""
    for frame in series.frames:
        shape = int(frame.header.Rows), int(frame.header.Columns)
        yield plane_of(
            labels.voxels,
            labels.grid,
            frame.position_mm * TO_RAS,
            frame.orientation[:3] * frame.pixel_mm[1] * TO_RAS,
            frame.orientation[3:] * frame.pixel_mm[0] * TO_RAS,
            shape,
        )


def point_mm(frame: Frame, columns_rows: np.ndarray) -> np.ndarray:
    """Places (point, 3) of points (column, row) of a frame: left, posterior, superior."""
    across = columns_rows[:, :1] * frame.pixel_mm[1] * frame.orientation[:3]
    down = columns_rows[:, 1:] * frame.pixel_mm[0] * frame.orientation[3:]
    return frame.position_mm + across + down


def missing_uids(series: Series) -> list[str]:
    """What results would refer to and some slice lacks: anonymisers remove it."""
    return [each for each in REFERRED if not all(text(frame.header, each) for frame in series.frames)]
