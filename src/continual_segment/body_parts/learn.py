"""learn_body_parts: unlabelled scans become a regressor; vertebra labels, where there are any, calibrate it.

The network learns from the order of slices and their distances alone. What its scores mean is read
afterwards from scans with vertebra labels, or of organs in place of them: the score of every lower
end-plate, the median over scans.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from continual_segment import __version__
from continual_segment.body_parts.loss import (
    anchor_loss,
    distance_loss,
    offset_loss,
    order_loss,
    sigmoid_loss,
)
from continual_segment.body_parts.regions import Calibration, RegionConfig, rise_per_mm, smoothed
from continual_segment.body_parts.regressor import BodyPartRegressor, score_slices
from continual_segment.body_parts.slices import RowConfig, SliceRows, SliceView, Thumbnails, make_thumbnails
from continual_segment.body_parts.spine import LANDMARKS, USUAL_MM, end_plates, has_known_heights
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.prepared_case import PreparedCase
from continual_segment.model.fingerprint import fingerprint_data
from continual_segment.networks.slice_scorer import SliceScorer
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.volume import LabelMap, Volume

log = logging.getLogger(__name__)

PairLoss = Literal["offset", "sigmoid"]
PAIR_LOSSES: dict[PairLoss, Callable[[Tensor, Tensor], Tensor]] = {
    "offset": offset_loss,
    "sigmoid": sigmoid_loss,
}


@dataclass(frozen=True)
class BodyPartConfig:
    """Everything the regressor depends on besides its scans."""

    learned: bool = True
    """Whether the first step of a model learns a regressor; without one, scans have no body parts."""
    view: SliceView = field(default_factory=SliceView)
    rows: RowConfig = field(default_factory=RowConfig)
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            iterations=1000,
            optimiser="muon",
            learning_rate=5e-3,
            weight_decay=1e-4,
            validation_batches=0,
            report_every=100,
        )
    )
    loss: PairLoss = "offset"
    """Of pairs of slices: offset (ours) or sigmoid (DKFZ's)."""
    order_weight: float = 0.0
    """Of the order loss beside it."""
    distance_weight: float = 0.0
    """Of the distance loss beside it."""
    anchor_weight: float = 0.0
    """Of a loss that ties scores to the heights that labels give. Above 0 the regressor is no longer learned
    without labels, but in few updates, and also from parts of the body that no scan joins."""
    scans: int = 400
    """Of each dataset, at most: their thumbnails stay in memory."""


def learn_body_parts(
    datasets: Sequence[PreparedDataset], config: BodyPartConfig, folder: Path
) -> BodyPartRegressor:
    """Train on the training scans of prepared datasets. `folder` keeps checkpoint, log and curves.

    Run again to resume a stopped run. Without any vertebra label all regions will be unknown.
    """
    torch.manual_seed(config.train.seed)
    network = SliceScorer().to(config.train.device)
    config = replace(config, view=replace(config.view, window_hu=common_window_hu(datasets)))
    cases = [case for dataset in datasets for case in training_cases(dataset, config.scans)]
    scans = [make_thumbnails(scan_of(case), config.view) for case in cases]

    labelled = [labels for dataset in datasets for labels in labels_of(dataset, config.scans)]
    if config.anchor_weight:
        scans = [anchored(scan, labels) for scan, labels in zip(scans, labelled, strict=True)]

    def loss_of(images: Tensor, heights: Tensor) -> Tensor:
        heights_mm, usual_mm = heights
        scores = network(images.flatten(0, 1)[:, None]).view(heights_mm.shape)
        loss = PAIR_LOSSES[config.loss](scores, heights_mm)
        if config.order_weight:
            loss = loss + config.order_weight * order_loss(scores)
        if config.distance_weight:
            loss = loss + config.distance_weight * distance_loss(scores)
        if config.anchor_weight:
            loss = loss + config.anchor_weight * anchor_loss(scores, usual_mm)
        return loss

    signature = {
        "data": [dataset.fingerprint for dataset in datasets],
        "view": asdict(config.view),
        "rows": asdict(config.rows),
        "train": config.train.settings,
        "loss": [config.loss, config.order_weight, config.distance_weight, config.anchor_weight],
        "scans": config.scans,
    }
    train(
        TrainingRun(
            Objective(loss_of, network=network),
            SliceRows(scans, config.rows, config.train.seed, config.train.iterations),
            config.train,
            folder,
            signature=fingerprint_data(signature),
            title="learning body parts",
        )
    )
    network.cpu().eval()
    return BodyPartRegressor(
        {name: tensor.detach().clone() for name, tensor in network.state_dict().items()},
        config.view,
        calibrate(network, scans, labelled),
        training_card(datasets, config, len(scans)),
    )


def common_window_hu(datasets: Sequence[PreparedDataset]) -> tuple[float, float]:
    """What a slice can show and the scans of all datasets still hold."""
    stored = [dataset.config.intensity.clip_hu or SliceView.window_hu for dataset in datasets]
    lows, highs = zip(*stored, strict=True)
    return max(lows), min(highs)


def training_cases(dataset: PreparedDataset, at_most: int) -> list[PreparedCase]:
    """Cases of the training split, spread evenly where there are too many."""
    names = dataset.case_names("train")
    chosen = np.unique(np.linspace(0, len(names) - 1, min(at_most, len(names))).astype(int))
    return [dataset.case(names[index]) for index in chosen]


def scan_of(case: PreparedCase) -> Volume:
    return case.volume


def labels_of(dataset: PreparedDataset, at_most: int) -> Iterator[LabelMap | None]:
    """The labels of the training cases; None for each where they have no organ of a known height."""
    useful = has_known_heights(organ.name for organ in dataset.organs)
    for case in training_cases(dataset, at_most):
        yield label_map(dataset, case) if useful else None


def label_map(dataset: PreparedDataset, case: PreparedCase) -> LabelMap:
    names = {number: organ.name for number, organ in enumerate(dataset.organs, start=1)}
    return case.label_map(names)


def anchored(scan: Thumbnails, labels: LabelMap | None) -> Thumbnails:
    """The scan with its heights in the usual body, between the end-plates that its labels give."""
    plates = end_plates(labels) if labels is not None else {}
    if labels is None or len(plates) < 2:
        return scan
    step = labels.grid.spacing_mm[0] / scan.slice_mm
    at = [(height + 0.5) * step - 0.5 for height in plates.values()]  # in thumbnails
    order = np.argsort(at)
    usual = np.array([USUAL_MM[name] for name in plates])[order]
    heights = np.interp(np.arange(len(scan.slices)), np.array(at)[order], usual, left=np.nan, right=np.nan)
    return replace(scan, usual_mm=heights)


def calibrate(
    network: SliceScorer, scans: Sequence[Thumbnails], labelled: Sequence[LabelMap | None]
) -> Calibration:
    """What the network's scores mean: those of landmarks, their usual rise, the range seen in training."""
    landmarks: dict[str, list[float]] = defaultdict(list)
    slopes, all_scores = [], []
    smooth_mm = RegionConfig().smooth_mm
    for scan, labels in zip(scans, labelled, strict=True):
        inside = np.flatnonzero(scan.body)
        if len(inside) < 3:
            continue
        scores = smoothed(score_slices(network, scan.images())[inside], smooth_mm / scan.slice_mm)
        all_scores.append(scores)
        slopes.append(rise_per_mm(scores, inside * scan.slice_mm))
        if labels is None:
            continue
        for name, height in end_plates(labels).items():
            at = (height + 0.5) * labels.grid.spacing_mm[0] / scan.slice_mm - 0.5  # in thumbnails
            if inside[0] <= at <= inside[-1]:
                landmarks[name].append(float(np.interp(at, inside, scores)))
    lowest, highest = np.percentile(np.concatenate(all_scores), [0.1, 99.9])
    known = {name: float(np.median(found)) for name, found in landmarks.items()}
    rise = float(np.median(slopes))
    return Calibration(with_landmarks(known, rise), rise, float(lowest), float(highest))


def with_landmarks(known: dict[str, float], score_per_mm: float) -> dict[str, float]:
    """The same with the landmarks that no scan showed: from the nearest that one did, by the usual rise."""
    found = dict(known)
    for name in LANDMARKS if known else ():
        if name not in known:
            nearest = min(known, key=lambda other: abs(USUAL_MM[other] - USUAL_MM[name]))
            found[name] = known[nearest] + (USUAL_MM[name] - USUAL_MM[nearest]) * score_per_mm
    return found


def training_card(datasets: Sequence[PreparedDataset], config: BodyPartConfig, scans: int) -> dict[str, Any]:
    """How a regressor came to be; nothing in it points to a patient."""
    return {
        "version": __version__,
        "torch": torch.__version__,
        "datasets": [dataset.name for dataset in datasets],
        "scans": scans,
        "rows": asdict(config.rows),
        "train": config.train.settings,
    }
