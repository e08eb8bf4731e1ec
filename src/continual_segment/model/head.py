"""AnomalyHead: detects diseased tissue in a scan, learned with or after the encoder, in one file.

It is a decoder of projections with one class: by the paper's count 0.04 of nnU-Net's decoder. Like a pack it
fits the encoder it was learned on and no other, can be added to a model at any time and changes
nothing that is there. Where several are installed, the most certain one decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from continual_segment.errors import ModelError
from continual_segment.model.checks import (
    check_finite,
    check_name,
    check_sha256,
    check_tensors,
    check_texts,
    damage_named,
    is_number,
)
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.model.model import Model
from continual_segment.model.pack import FORMATS, format_of, network_from_json, texts_from_json
from continual_segment.model.tensor_file import read_tensor_file
from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig
from continual_segment.networks.heads import ProjectionHead

SUFFIX = ".head"
FOLDER = "heads"
PLANNED = 2
"""The format of heads with a plan, which versions before 0.2 cannot build."""
MOST_RADIUS_MM = 200.0
"""Smoothing takes time in proportion."""


@dataclass(frozen=True, eq=False)
class AnomalyHead:
    """A trained head and what is known about it."""

    name: str
    anomalies: tuple[str, ...]
    """Kinds of disease it was shown."""
    network: NetworkConfig
    encoder_fingerprint: str
    weights: dict[str, Tensor]
    card: dict[str, Any] = field(default_factory=dict)
    """How it was trained. No patient data."""
    plan: DecoderPlan | None = None
    """Its blocks; None: a head of version 0.1, which has another form."""
    radius_mm: float | None = None
    """Of the tumours it learned from, on average: as far as its map is smoothed. None: it is not."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_texts(self.anomalies, "list of anomalies")
        check_sha256(self.encoder_fingerprint, "encoder's fingerprint")
        radius = self.radius_mm
        if radius is not None and not (is_number(radius) and 0 < radius <= MOST_RADIUS_MM):
            raise ModelError(f"The radius of tumours is a number from 0 to {MOST_RADIUS_MM:g} mm.")
        check_tensors(self.weights, self.build, f"head '{self.name}'")

    @property
    def fingerprint(self) -> str:
        """sha256 of everything its answers depend on."""
        return fingerprint_data(
            {"weights": fingerprint_tensors(self.weights), "encoder": self.encoder_fingerprint} | self._shape
        )

    @property
    def _shape(self) -> dict[str, Any]:
        """Plan and radius as files have them; heads of version 0.1 have none."""
        return {} if self.plan is None else {"plan": self.plan.kernels, "radius_mm": self.radius_mm}

    def build(self) -> Decoder | ProjectionHead:
        """The network without its weights."""
        if self.plan is None:
            return ProjectionHead(self.network, classes=1)
        return Decoder(self.network, self.plan, organs=1)

    def head(self) -> Decoder | ProjectionHead:
        """The head with its weights, ready to run."""
        head = self.build()
        head.load_state_dict(self.weights)
        return head.eval().requires_grad_(False)

    def described(self) -> dict[str, Any]:
        return self._shape | {
            "format": format_of(self.network.described()) if self.plan is None else PLANNED,
            "name": self.name,
            "anomalies": self.anomalies,
            "fingerprint": self.fingerprint,
            "encoder_fingerprint": self.encoder_fingerprint,
            "network": self.network.described(),
            "card": self.card,
        }

    def to_bytes(self) -> bytes:
        text = json.dumps(self.described(), sort_keys=True)
        return save(dict(sorted(self.weights.items())), metadata={"head": text})

    @classmethod
    def read(cls, path: Path) -> AnomalyHead:
        described, weights = read_tensor_file(path, "head", "anomaly head", FORMATS)
        with damage_named(path):
            head = cls(
                described["name"],
                texts_from_json(described["anomalies"]),
                network_from_json(described["network"]),
                described["encoder_fingerprint"],
                weights,
                described["card"],
                DecoderPlan(tuple(described["plan"])) if "plan" in described else None,
                described.get("radius_mm"),
            )
            check_sha256(described["fingerprint"], "head's fingerprint")
        if head.fingerprint != described["fingerprint"]:
            raise ModelError(f"{path}: these are not the weights the head was made with. Get it anew.")
        return head


def anomaly_heads(model: Model) -> list[AnomalyHead]:
    """The heads of a model, by name."""
    names = sorted(name for name in model.files if name.endswith(SUFFIX))
    heads = [AnomalyHead.read(model.folder / name) for name in names]
    for head in heads:
        check_encoder(model, head)
    return heads


def add_head(model: Model, head: AnomalyHead) -> Model:
    """Install a head; return the model with it."""
    check_encoder(model, head)
    check_finite(head.weights, f"head '{head.name}'")
    return model.add_file(head_file(head.name), head.to_bytes())


def check_encoder(model: Model, head: AnomalyHead) -> None:
    if head.encoder_fingerprint != model.encoder_fingerprint or head.network != model.network:
        raise ModelError(
            f"Head '{head.name}' was learned on another encoder ({head.encoder_fingerprint[:12]}) than that "
            f"of {model.folder} ({model.encoder_fingerprint[:12]}). Learn its dataset here."
        )


def head_file(name: str) -> str:
    """The file of a head in the model's folder."""
    return f"{FOLDER}/{name}{SUFFIX}"
