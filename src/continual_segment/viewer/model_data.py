"""What the page of a model shows: packs, organs, sizes, coverage, training cards, licences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from continual_segment.model import Model, OrganPack, verify
from continual_segment.model.pieces import OrganPieces
from continual_segment.names import printable
from continual_segment.organs import BODY_PARTS
from continual_segment.segmentation.clean_up import known_pieces
from continual_segment.viewer.organ_table import colour_of, group_of

CARD = {
    "dataset": "dataset",
    "validation_patch_dice": "Dice on validation patches",
    "version": "made with version",
    "torch": "torch",
}
"""Entries of a training card that are shown as they are."""


def model_data(folder: Path) -> dict[str, Any]:
    """The model as plain data."""
    model = Model.open(folder)
    return {
        "name": printable(model.folder.resolve().name),
        "encoder": {
            "fingerprint": model.encoder_fingerprint[:12],
            "bytes": sum(path.stat().st_size for path in model.folder.glob("encoder*")),
        },
        "body_parts": BODY_PARTS[::-1],
        "packs": [_pack_data(model, model.pack(name)) for name in model.pack_names],
    }


def training_volumes(folder: Path) -> dict[int, OrganPieces]:
    """By organ id, volumes and pieces in the training labels of all packs that know the organ."""
    model = Model.open(folder)
    packs = [model.pack(name) for name in model.pack_names]
    return known_pieces((pack.organs, pack.pieces) for pack in packs)


def verification_data(folder: Path) -> dict[str, Any]:
    """What `conseg verify` finds."""
    found = verify(folder)
    rows = [
        {"part": printable(each.part), "good": each.good, "sentence": printable(each.sentence, 600)}
        for each in found.findings
    ]
    return {"good": found.good, "findings": rows}


def _pack_data(model: Model, pack: OrganPack) -> dict[str, Any]:
    return {
        "name": printable(pack.name),
        "fingerprint": pack.fingerprint[:12],
        "bytes": model.pack_path(pack.name).stat().st_size,
        "parameters": sum(tensor.numel() for tensor in pack.weights.values()),
        "coverage": pack.coverage,
        "distribution": pack.distribution,
        "anomalies": [printable(each) for each in pack.anomalies],
        "licence": printable(pack.licence, 2000),
        "card": _card_data(pack.card),
        "organs": [
            {
                "name": organ.name,
                "shown": organ.name.replace("_", " "),
                "id": organ.id,
                "snomed": organ.snomed,
                "body_part": organ.body_part,
                "group": group_of(organ).replace("_", " "),
                "side": organ.side,
                "colour": colour_of(organ),
                "trained": _trained(pack.pieces.get(organ.name)),
            }
            for organ in model.organs_of(pack)
        ],
    }


def _trained(pieces: OrganPieces | None) -> dict[str, Any] | None:
    """Volumes in the training labels; None where not measured."""
    return {"scans": pieces.scans, "volume_ml": pieces.volume_ml} if pieces else None


def _card_data(card: dict[str, Any]) -> dict[str, str]:
    """Short texts of the entries that most packs have; a card may come from a stranger."""
    shown = {title: printable(str(card[name])) for name, title in CARD.items() if name in card}
    cases = card.get("cases")
    if isinstance(cases, dict):
        shown["cases"] = printable(", ".join(f"{count} {split}" for split, count in cases.items()))
    train = card.get("train")
    if isinstance(train, dict) and "iterations" in train:
        shown["iterations"] = printable(str(train["iterations"]))
    return shown
