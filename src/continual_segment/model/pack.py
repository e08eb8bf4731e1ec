"""OrganPack: what one learning step adds to a model, in one file.

A pack is a safetensors file. Its tensors are the decoder's weights and a few probe outputs; its header
holds one JSON text with everything else. The same pack always gives the same bytes, whatever model it
is installed in. See docs/model_format.md.

A pack may come from a stranger. Every OrganPack has a description that was checked and weights with the names
and shapes of its decoder; `admission.py` has the checks that need an encoder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from continual_segment.errors import ModelError
from continual_segment.files.atomic import atomic_path
from continual_segment.files.records import as_record
from continual_segment.model.assessment import FIELD as ASSESSMENT
from continual_segment.model.assessment import Assessment, assessment_from_json
from continual_segment.model.checks import (
    check_assessment,
    check_choice,
    check_name,
    check_sha256,
    check_shares,
    check_tensor,
    check_tensors,
    check_texts,
    damage_named,
)
from continual_segment.model.fingerprint import (
    SAMPLED_VOXELS,
    environment,
    fingerprint_data,
    fingerprint_tensors,
    probe_logits,
    sampled,
)
from continual_segment.model.pieces import OrganPieces, pieces_on_card
from continual_segment.model.tensor_file import read_tensor_file
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
from continual_segment.organs import Organ, check_organs

FORMATS = (1, 2)
"""That can be read; 2 has networks, plans with widths, regions, mirroring and assessments, and models of it
preparations, that 1 lacks."""
AXES = tuple(axes for count in range(4) for axes in combinations(range(3), count))
"""Every choice of mirrored axes."""
SUFFIX = ".pack"
PREFIX = "decoder."
"""Of the names of a decoder's weights in the file."""


@dataclass(frozen=True, eq=False)
class OrganPack:
    """One step's decoder and all that is known about it."""

    name: str
    organs: tuple[Organ, ...]
    """Channel i + 1 of the decoder is organs[i]; with `regions`, channel i."""
    plan: DecoderPlan
    network: NetworkConfig
    """Sizes of the encoder the decoder reads from."""
    encoder_fingerprint: str
    weights: dict[str, Tensor]
    probe: Tensor
    """Logits at some voxels of the probe volume, taken when the pack was made."""
    probe_sha256: str
    """Of all the probe's logits."""
    probe_environment: str
    """Where the probe was taken: bit-equality is asked for there alone."""
    coverage: dict[str, float] = field(default_factory=dict)
    """Body part -> how well the training scans covered it. Empty: not measured, restricts nothing."""
    anomalies: tuple[str, ...] = ()
    """Kinds of disease the training scans held, in which this pack can be trusted."""
    licence: str = ""
    card: dict[str, Any] = field(default_factory=dict)
    """How it was trained: settings, data size, validation scores. No patient data."""
    regions: bool = False
    """Outputs are regions that may overlap, without a background channel, as of nnU-Net's region-based
    models. Where several probabilities are above 0.5, the last organ wins."""
    mirror_axes: tuple[int, ...] = ()
    """Axes of the window along which nnU-Net mirrors at inference."""
    assessment: Assessment | None = None
    """What the pack knows of itself; None: not measured, weighs as much as any other."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_organs(self.organs, ModelError)
        check_sha256(self.encoder_fingerprint, "encoder's fingerprint")
        check_sha256(self.probe_sha256, "probe's fingerprint")
        check_texts([self.probe_environment, self.licence], "licence or environment")
        check_texts(self.anomalies, "list of anomalies")
        check_shares(self.coverage, "coverage")
        check_shares(self.distribution, "distribution over body parts")
        pieces_on_card(self.card, self.organs)
        check_assessment(self.assessment, self.organs, sum(self.network.features))
        check_choice(self.regions, (False, True), "entry regions")
        check_choice(self.mirror_axes, AXES, "list of mirrored axes")
        check_tensors(self.weights, self._build, f"decoder of '{self.name}'")
        check_tensor(self.probe, (self.outputs, SAMPLED_VOXELS), f"probe of '{self.name}'")

    @classmethod
    def of(
        cls, name: str, organs: tuple[Organ, ...], encoder: GeneralEncoder, decoder: Decoder,
        encoder_fingerprint: str, **known: Any,
    ) -> OrganPack:  # fmt: skip
        """The pack of a trained decoder; one without background has regions."""
        logits = probe_logits(encoder, decoder)
        return cls(
            name=name,
            organs=organs,
            plan=decoder.plan,
            network=decoder.network,
            encoder_fingerprint=encoder_fingerprint,
            weights={key: tensor.detach().cpu().clone() for key, tensor in decoder.state_dict().items()},
            probe=sampled(logits),
            probe_sha256=fingerprint_tensors({"logits": logits}),
            probe_environment=environment(),
            regions=not decoder.background,
            **known,
        )

    @property
    def fingerprint(self) -> str:
        """sha256 of all that the pack's output depends on; the same for one pack under any name."""
        return fingerprint_data(
            {
                "weights": fingerprint_tensors(self.weights),
                "plan": self.plan.kernels,
                "organs": [organ.id for organ in self.organs],
                "encoder": self.encoder_fingerprint,
            }
            | self._special()
        )

    def _special(self) -> dict[str, Any]:
        """What format 1 cannot express; empty for most packs, which so keep their bytes and fingerprints."""
        special = {"regions": self.regions, "mirror_axes": self.mirror_axes}
        return {name: value for name, value in special.items() if value}

    @property
    def outputs(self) -> int:
        """Channels of the decoder."""
        return len(self.organs) + (not self.regions)

    @property
    def distribution(self) -> dict[str, float]:
        """Body part -> share of the labelled height of the training scans; empty where not measured."""
        measured = self.card.get("body_parts", {})
        return measured.get("distribution", {})

    @property
    def pieces(self) -> dict[str, OrganPieces]:
        """Organ name -> its pieces in the training labels; empty where not measured, and not cleaned up."""
        return pieces_on_card(self.card, self.organs)

    def renamed(self, name: str) -> OrganPack:
        """The same pack under another name; its fingerprint stays."""
        return replace(self, name=name)

    def decoder(self) -> Decoder:
        """The decoder with its weights, ready to segment."""
        decoder = self._build()
        decoder.load_state_dict(self.weights)
        return decoder.eval().requires_grad_(False)

    def _build(self) -> Decoder:
        return Decoder(self.network, self.plan, len(self.organs), background=not self.regions)

    def described(self) -> dict[str, Any]:
        """Everything but the tensors, as in the file."""
        assessed = {ASSESSMENT: asdict(self.assessment)} if self.assessment else {}
        special = self._special() or assessed or self.plan.has_widths
        return (
            {
                "format": 2 if special else format_of(self.network.described()),
                "name": self.name,
                "fingerprint": self.fingerprint,
                "encoder_fingerprint": self.encoder_fingerprint,
                "organs": [asdict(organ) for organ in self.organs],
                "plan": self.plan.kernels,
                "network": self.network.described(),
                "coverage": self.coverage,
                "anomalies": self.anomalies,
                "licence": self.licence,
                "card": self.card,
                "probe_sha256": self.probe_sha256,
                "probe_environment": self.probe_environment,
            }
            | self._special()
            | assessed
        )

    def to_bytes(self) -> bytes:
        """The content of the pack file: the same bytes in every model."""
        tensors = {f"{PREFIX}{name}": tensor for name, tensor in self.weights.items()}
        # one metadata key alone: the writer does not fix the order of several
        return save(tensors | {"probe": self.probe}, {"pack": json.dumps(self.described(), sort_keys=True)})

    def write(self, path: Path) -> None:
        """Write the pack file; it is visible only when complete."""
        with atomic_path(path) as temporary:
            temporary.write_bytes(self.to_bytes())

    @classmethod
    def read(cls, path: str | Path) -> OrganPack:
        """Read a pack file; its fingerprint is checked against what it holds."""
        path = Path(path)
        described, tensors = read_tensor_file(path, "pack", "organ pack", FORMATS)
        with damage_named(path):
            pack = cls._from(described, tensors)
            check_sha256(described["fingerprint"], "pack's fingerprint")
        if pack.fingerprint != described["fingerprint"]:
            raise ModelError(
                f"{path}: the weights of pack '{pack.name}' are not those it was made with "
                f"(fingerprint {pack.fingerprint[:12]}, expected {described['fingerprint'][:12]}). "
                "Get the pack anew."
            )
        return pack

    @classmethod
    def _from(cls, described: dict[str, Any], tensors: dict[str, Tensor]) -> OrganPack:
        """The pack of a description and tensors that may come from a stranger."""
        probe = tensors.pop("probe")
        if strange := [name for name in tensors if not name.startswith(PREFIX)]:
            raise ValueError(f"{len(strange)} tensors are no weights of the decoder, such as {strange[0]}")
        return cls(
            name=described["name"],
            organs=tuple(Organ(**organ) for organ in described["organs"]),
            plan=DecoderPlan(tuple(described["plan"])),
            network=network_from_json(described["network"]),
            encoder_fingerprint=described["encoder_fingerprint"],
            weights={name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()},
            probe=probe,
            probe_sha256=described["probe_sha256"],
            probe_environment=described["probe_environment"],
            coverage=described["coverage"],
            anomalies=texts_from_json(described["anomalies"]),
            licence=described["licence"],
            card=described["card"],
            regions=described.get("regions", False),
            mirror_axes=tuple(described.get("mirror_axes", ())),
            assessment=assessment_from_json(described.get(ASSESSMENT)),
        )


def texts_from_json(data: list[str]) -> tuple[str, ...]:
    check_texts(data, "list of anomalies")
    return tuple(data)


def network_from_json(data: Any) -> NetworkConfig:
    """The network that a model, pack or head describes."""
    return as_record(data, NetworkConfig, "network", ModelError)


def format_of(network: dict[str, Any]) -> int:
    """The lowest format that expresses a described network, so that older versions read what they can."""
    return 1 if "convs_per_stage" in network else 2
