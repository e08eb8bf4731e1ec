"""BodyPartRegressor: a score for every slice of a scan, and body parts from the scores, in one file.

The file is safetensors: the network's weights, and one JSON text with all else. See docs/model_format.md.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from continual_segment.body_parts.regions import Calibration, RegionConfig, Regions, regions_from_scores
from continual_segment.body_parts.slices import SliceView, make_thumbnails
from continual_segment.errors import ModelError
from continual_segment.files import write_bytes
from continual_segment.model import Model
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.model.tensor_file import read_tensor_file
from continual_segment.names import printable
from continual_segment.networks.slice_scorer import SliceScorer
from continual_segment.volume import Volume

FORMAT = 1
FILE = "body_parts.safetensors"
"""Its name in a model folder."""
SLICES_AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class BodyPartRegressor:
    """A trained and calibrated slice scorer."""

    weights: dict[str, Tensor] = field(repr=False)
    view: SliceView
    calibration: Calibration
    card: dict[str, Any] = field(default_factory=dict)
    """How it was trained. No patient data."""

    def __post_init__(self) -> None:
        network = SliceScorer()
        network.load_state_dict(self.weights)
        object.__setattr__(self, "_network", network.eval().requires_grad_(False))

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that decides the regions of a scan."""
        return fingerprint_data(
            {
                "weights": fingerprint_tensors(self.weights),
                "view": asdict(self.view),
                "calibration": asdict(self.calibration),
            }
        )

    def scores(self, scan: Volume) -> tuple[np.ndarray, np.ndarray]:
        """Score of every slice of the scan, and whether it shows a body."""
        found = make_thumbnails(scan, self.view)
        scored = score_slices(self._network, found.images())  # type: ignore[attr-defined]
        # heights of slice middles, both counted from the bottom of the scan
        own = (np.arange(len(scored)) + 0.5) * found.slice_mm
        wanted = (np.arange(scan.grid.shape[0]) + 0.5) * scan.grid.spacing_mm[0]
        nearest = np.abs(wanted[:, None] - own).argmin(axis=1)
        return np.interp(wanted, own, scored), found.body[nearest]

    def regions(self, scan: Volume, config: RegionConfig | None = None) -> Regions:
        """The body parts of a scan."""
        scores, body = self.scores(scan)
        return regions_from_scores(scores, body, scan.grid, self.calibration, config)

    def described(self) -> dict[str, Any]:
        """The JSON text of the file's header, as data."""
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "view": asdict(self.view),
            "calibration": asdict(self.calibration),
            "card": self.card,
        }

    def to_bytes(self) -> bytes:
        """The same regressor gives the same bytes."""
        text = json.dumps(self.described(), sort_keys=True)
        return save(dict(sorted(self.weights.items())), metadata={"body_parts": text})

    def write(self, path: Path) -> None:
        """One file, whole or not at all."""
        write_bytes(path, self.to_bytes())

    @classmethod
    def of_model(cls, model: Model) -> BodyPartRegressor | None:
        """That of a model; None where it has none."""
        return cls.read(model.folder) if FILE in model.files else None

    @classmethod
    def read(cls, path: str | Path) -> BodyPartRegressor:
        """From a file, or from a model folder that holds one."""
        path = Path(path) / FILE if Path(path).is_dir() else Path(path)
        if not path.exists():
            raise ModelError(
                f"{path}: there is no such file. `conseg bodyparts PREPARED --learn -m {path}` makes one."
            )
        described, weights = read_tensor_file(path, "body_parts", "body-part regressor", (FORMAT,))
        try:
            found = cls(
                weights,
                SliceView(**described["view"]),
                Calibration(**described["calibration"]),
                described["card"],
            )
            made_with = described["fingerprint"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{path}: the regressor's description is damaged ({printable(repr(error))}). Get it again."
            ) from error
        if found.fingerprint != made_with:
            raise ModelError(f"{path}: these are not the weights the regressor was made with. Get it anew.")
        return found


@torch.no_grad()
def score_slices(network: SliceScorer, images: Tensor) -> np.ndarray:
    """Scores of slices (slice, 1, y, x), some at a time."""
    return torch.cat([network(part) for part in images.split(SLICES_AT_ONCE)]).numpy().astype(np.float64)
