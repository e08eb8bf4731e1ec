"""ILT: a frozen encoder and distilled outputs (Michieli and Zanuttigh, ICCVW 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from continual_segment.lab.baselines.mib import MiB


@dataclass(frozen=True)
class ILT(MiB):
    """Incremental Learning Techniques in the paper's version: MiB's losses on a frozen encoder.

    All encoder stages are frozen, norms included; the decoder and all heads learn. Teacher and student read
    the same features, so the encoder runs once. The original used plain cross-entropy and distilled all old
    classes and the features.
    """

    freeze_encoder: bool = True
