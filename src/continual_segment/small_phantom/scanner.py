"""A scanner: from a painted body to Hounsfield units with partial volume, noise and a table."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from continual_segment.small_phantom.anatomy import Solid

AIR_HU = -1000.0


def scan(painted: np.ndarray, structures: list[Solid], seed: int, noise_hu: float) -> np.ndarray:
    """Hounsfield units (z, y, x) of a painted body, int16."""
    rng = np.random.default_rng((seed, 4))
    table = [AIR_HU, *(solid.hu + rng.normal(0, 8) for solid in structures)]  # contrast differs a little
    hu = np.array(table, dtype=np.float32)[painted]
    hu = ndimage.gaussian_filter(hu, 0.5)  # partial volume
    hu[:, : max(1, hu.shape[1] // 20)] = 100  # the table under the patient's back
    hu += rng.normal(rng.uniform(-10, 10), noise_hu, hu.shape).astype(np.float32)
    return np.clip(np.round(hu), -1024, 3000).astype(np.int16)
