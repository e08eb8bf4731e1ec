"""To which pack's scans a scan belongs, by what the encoder makes of it.

A scan is described by the standard deviation of every channel of the encoder, averaged over a few windows
that are spread over it. Each pack stores mean and covariance of such descriptions over its training scans.
Scans of one dataset differ too, by the size of patients for example: so the covariances of all packs are
averaged, and distances are measured in units of what is usual within a dataset.

In:  a PaddedScan and the encoder; the Domain of each pack
Out: familiarity of each pack with the scan, 1 for the most familiar
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from continual_segment.model.assessment import Domain
from continual_segment.segmentation.padded_scan import PaddedScan
from continual_segment.segmentation.windows import covering_corners, spread_evenly

WINDOWS = 6
"""Of a scan that describe it."""
INDEPENDENT = 0.1
"""Share of the variance of each channel that counts as its own: few scans show too few directions."""

Encode = Callable[[Tensor], Sequence[Tensor]]


@torch.no_grad()
def describe_windows(windows: Iterable[np.ndarray], encode: Encode, device: torch.device) -> np.ndarray:
    """Windows (z, y, x) of one scan, normalised -> one number per channel, the finest stage first."""
    found = []
    for window in windows:
        features = encode(torch.from_numpy(window)[None, None].to(device))
        found.append(torch.cat([stage[0].float().flatten(1).std(dim=1) for stage in features]).cpu().numpy())
    return np.stack(found).mean(axis=0, dtype=np.float64)


def describe_scan(scan: PaddedScan, encode: Encode, device: torch.device) -> np.ndarray:
    """The description of a scan that is to be segmented."""
    corners = describing_corners(scan.scan.shape, scan.window)
    return describe_windows(map(scan.window_at, corners), encode, device)


def describing_corners(shape: Sequence[int], window: Sequence[int]) -> list[list[int]]:
    """First voxels of the windows that describe a scan of this shape."""
    return spread_evenly(covering_corners(shape, window), WINDOWS)


def domain_of(scans: Sequence[np.ndarray], directions: int) -> Domain:
    """The domain of two scans or more, with at most so many directions."""
    described = np.stack(scans)
    mean = described.mean(axis=0)
    deviations = (described - mean) / np.sqrt(len(scans) - 1)
    _, lengths, axes = np.linalg.svd(deviations, full_matrices=False)
    kept = (lengths[:, None] * axes)[: min(directions, len(scans) - 1)]
    kept *= np.where(kept.sum(axis=1, keepdims=True) < 0, -1, 1)  # the sign of an axis is arbitrary
    left = (deviations**2).sum(axis=0) - (kept**2).sum(axis=0)
    rest = np.sqrt(np.maximum(left, 0)) + LEAST_REST
    return Domain(rounded(mean), tuple(map(rounded, kept)), rounded(rest), len(scans))


LEAST_REST = 1e-4
"""Of the standard deviation of a normalised channel: one that never differs is no proof of anything."""
DIGITS = 5


def rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(np.round(values, DIGITS).tolist())


class DomainComparison:
    """The domains of several packs, by pack."""

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self.means = {pack: np.array(domain.mean) for pack, domain in domains.items()}
        covariance = sum(covariance_of(domain) for domain in domains.values()) / len(domains)
        self.spread = np.sqrt(np.diag(covariance))
        correlation = covariance / np.outer(self.spread, self.spread)
        correlation = (1 - INDEPENDENT) * correlation + INDEPENDENT * np.eye(len(self.spread))
        self.precision = np.linalg.inv(correlation)
        self.independent = len(correlation) / float((correlation**2).sum())
        """Share of the channels that counts as independent: those that always change together are one."""

    def familiarity(self, scan: np.ndarray) -> dict[str, float]:
        """Likelihood of the scan under each pack's domain, relative to the largest."""
        evidence = {pack: -0.5 * self.independent * self.distance(scan, pack) for pack in self.means}
        best = max(evidence.values())
        return {pack: float(np.exp(each - best)) for pack, each in evidence.items()}

    def distance(self, scan: np.ndarray, pack: str) -> float:
        """Squared Mahalanobis distance from the mean of a pack."""
        difference = (scan - self.means[pack]) / self.spread
        return float(difference @ self.precision @ difference)


def covariance_of(domain: Domain) -> np.ndarray:
    directions = np.array(domain.directions).reshape(-1, len(domain.mean))
    return directions.T @ directions + np.diag(np.array(domain.rest) ** 2)
