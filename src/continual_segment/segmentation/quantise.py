"""quantise: int8 versions of a model's networks, calibrated on a few scans.

Post-training quantisation by NNCF: weights and activations of convolutions become int8, with ranges taken
from windows of scans. The last layer, which runs once per voxel, stays in float32.

In:  a model, a few scans like those to be segmented
Out: quantised networks in the cache beside the model (segmentation/int8.py); the model does not change
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from continual_segment.errors import ConfigError
from continual_segment.model import Model
from continual_segment.model.starter import refuse_starter
from continual_segment.segmentation.backends import FlatDecoder, FlatEncoder
from continual_segment.segmentation.int8 import Int8Cache
from continual_segment.segmentation.openvino_runtime import convert, import_without_telemetry
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.prepared_scan import prepare_for_windows
from continual_segment.segmentation.segment_config import SegmentConfig
from continual_segment.segmentation.segmenter import Segmenter
from continual_segment.segmentation.sliding_window import window_positions
from continual_segment.volume import Volume

if TYPE_CHECKING:
    from continual_segment.volume import Scan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QuantiseConfig:
    """How networks are calibrated."""

    windows: int = 40
    """Windows that each network is calibrated on, from all scans together."""
    seed: int = 0
    """Of the choice of windows."""
    overwrite: bool = False
    """Whether to quantise networks again that are in the cache already."""

    def __post_init__(self) -> None:
        if self.windows < 1:
            raise ConfigError(f"windows is at least 1, not {self.windows}.")


def quantise(model: Model | str | Path, scans: Sequence[Scan], config: QuantiseConfig | None = None) -> Path:
    """Quantise the encoder and all packs of a model; return the folder of the cache, beside the model.

    Networks that are in the cache already are left as they are.
    """
    model, config = model if isinstance(model, Model) else Model.open(model), config or QuantiseConfig()
    refuse_starter(model.folder)  # the cache is beside the model
    quantiser = Quantiser(Int8Cache.of(model), config)
    segmenter = Segmenter(model, config=SegmentConfig(body_parts=False, anomalies=False, progress=False))
    missing = list(quantiser.missing(model, segmenter.packs))
    if not missing:
        log.info("%s: all networks are there; --overwrite quantises them again.", quantiser.cache.folder)
        return quantiser.cache.folder
    windows = calibration_windows(model, scans, config)
    for network in missing:
        log.info("quantising %s", network.name)
        quantiser.quantise(network, windows)
    return quantiser.cache.folder


@dataclass(frozen=True, eq=False)
class FloatNetwork:
    """A network of a model, and where its quantised version is stored."""

    name: str
    module: nn.Module
    place: Path
    inputs: Callable[[Tensor], Sequence[Tensor]]
    """Window -> what the network takes."""


class Quantiser:
    """Writes quantised networks to a cache."""

    def __init__(self, cache: Int8Cache, config: QuantiseConfig) -> None:
        self.cache, self.config = cache, config
        self.ov = import_without_telemetry("openvino", "int8")
        self.nncf = import_without_telemetry("nncf", "int8")
        logging.getLogger("nncf").setLevel(logging.ERROR)  # set_log_level also changes handlers of others

    def missing(self, model: Model, packs: Sequence[PackDecoder]) -> Iterator[FloatNetwork]:
        """The networks that are not in the cache, or all with `overwrite`."""
        encoder = FlatEncoder(model.load_encoder())
        networks = [FloatNetwork("encoder", encoder, self.cache.place(), lambda window: [window])]
        for pack in packs:
            place = self.cache.place(pack.profile.fingerprint, pack.accumulates_features)
            decoder = FlatDecoder(pack.decoder, pack.accumulates_features)
            networks.append(FloatNetwork(pack.profile.name, decoder, place, encoder))
        return (each for each in networks if self.config.overwrite or not each.place.exists())

    @torch.no_grad()
    def quantise(self, network: FloatNetwork, windows: Sequence[Tensor]) -> None:
        converted = convert(self.ov, network.module, network.inputs(windows[0]))

        def inputs(window: Tensor) -> list[np.ndarray]:  # one window at a time: features are large
            return [each.numpy() for each in network.inputs(window)]

        with contextlib.redirect_stdout(io.StringIO()):  # NNCF's progress bars
            quantised = self.nncf.quantize(
                converted,
                self.nncf.Dataset(windows, inputs),
                preset=self.nncf.QuantizationPreset.MIXED,
                subset_size=len(windows),
                # transposed convolutions are products of matrices bound by memory
                ignored_scope=self.nncf.IgnoredScope(types=["MatMul"], validate=False),
            )
        versions = {"openvino": self.ov.__version__, "nncf": self.nncf.__version__}
        save = partial(self._save, quantised)
        self.cache.write(network.place, save, len(windows), versions)

    def _save(self, quantised: Any, path: Path) -> None:
        self.ov.save_model(quantised, path, compress_to_fp16=False)


def calibration_windows(model: Model, scans: Sequence[Scan], config: QuantiseConfig) -> list[Tensor]:
    """Windows (1, 1, z, y, x) of scans, chosen at random among those that are not air."""
    if not scans:
        raise ConfigError("Quantising needs at least one scan. A few like those to be segmented are enough.")
    rng, of_each, found = np.random.default_rng(config.seed), ceil(config.windows / len(scans)), []
    for scan in scans:
        padded = prepare_for_windows(Volume.of(scan), model.prepare, model.window).padded
        starts, boxes = window_positions(padded.shape, model.window, overlap=0.0)
        rows = [slice(start, start + model.window[0]) for start in starts]
        inside = [
            (row, box)
            for row in rows
            for box, air in zip(boxes, padded.are_air(row, boxes), strict=True)
            if not air
        ]
        for index in rng.permutation(len(inside))[:of_each]:
            row, box = inside[index]
            found.append(torch.from_numpy(padded[row][:, *box].copy())[None, None])
    if not found:
        raise ConfigError(
            f"The {len(scans)} scans to calibrate on show nothing but air. "
            "Name scans like those to be segmented."
        )
    return found[: config.windows]
