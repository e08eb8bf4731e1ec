"""Settings of segmentation."""

from __future__ import annotations

from dataclasses import dataclass

from continual_segment.segmentation.backends import BACKEND_NAMES, BackendName
from continual_segment.segmentation.merge import RULES, RuleName


@dataclass(frozen=True)
class SegmentConfig:
    """How scans are divided into windows, how packs are merged, and what computes it."""

    merge: RuleName = "weighted"
    """Rule that decides voxels where packs disagree; segmentation/merge.py lists the rules. `weighted` uses
    what packs measured of themselves when they were learned; if one did not, `consensus` takes its place."""
    nested: bool = True
    """Whether an organ and its parts, such as the aorta and its arch, share voxels instead of competing."""
    body_parts: bool = True
    """Whether merging uses the body parts that the model's regressor finds in a scan, if it has one."""
    anomalies: bool = True
    """Whether merging uses the model's anomaly heads, if the rule reads them: all but `literal` do so only if
    some packs are disease-aware and others are not."""
    skip_below: float = 0.0
    """A pack does not run on windows whose body parts it covers to at most this share of its best part."""
    mirror: bool = False
    """Whether packs imported from nnU-Net see every window mirrored as well, as nnU-Net does by default: a
    little more accurate, up to eight times as slow. It does not affect packs trained without mirroring."""
    keep_islands: bool = False
    """Whether to leave pieces that an organ cannot have, by the pieces in which packs saw it in training."""
    overlap: float = 0.5
    """Share of a window that overlaps with the next."""
    windows_at_once: int = 2
    """Batch size. On CPUs, PyTorch runs small 3D convolutions of one sample with a slow kernel: a batch of
    two takes half the time of two single windows. Large windows always run one by one."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    backend: BackendName = "eager"
    """Engine that runs the networks; segmentation/backends.py lists the choices. All but int8, which runs
    what `conseg quantise` stored beside the model, give the same results up to rounding."""
    progress: bool = True
    """Whether to show a progress bar per scan."""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap is a share from 0 to below 1, not {self.overlap}.")
        if self.merge not in RULES:
            raise ValueError(f"merge is one of {', '.join(RULES)}, not {self.merge!r}.")
        if not 0 <= self.skip_below < 1:
            raise ValueError(f"skip_below is a share from 0 to below 1, not {self.skip_below}.")
        if self.backend not in BACKEND_NAMES:
            raise ValueError(f"backend is one of {', '.join(BACKEND_NAMES)}, not {self.backend!r}.")
        if self.backend in ("openvino", "int8") and self.device != "cpu":
            raise ValueError(f"The backend {self.backend} computes on the cpu, not on {self.device}.")
        if self.windows_at_once < 1:
            raise ValueError(f"windows_at_once is at least 1, not {self.windows_at_once}.")
