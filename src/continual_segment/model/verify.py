"""verify: prove that nothing a model has learned has changed.

For the encoder and every pack: the file's bytes are those the model listed when it was added, the
weights are those the pack was made with, and the outputs on the probe volume are those taken then. For every
other file, such as the body-part regressor: its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from continual_segment.errors import ModelError
from continual_segment.model.admission import check_outputs
from continual_segment.model.model import ENCODER, Model, pack_file, sha256
from continual_segment.networks import GeneralEncoder


@dataclass(frozen=True)
class Finding:
    """What was found about one part of a model."""

    part: str
    good: bool
    sentence: str


@dataclass(frozen=True)
class Verification:
    """One finding per part."""

    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        return all(finding.good for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(
            f"{'ok  ' if finding.good else 'FAIL'} {finding.part}: {finding.sentence}"
            for finding in self.findings
        )


def verify(folder: Path | str) -> Verification:
    """Check every part of a model; needs no scan."""
    model = Model.open(folder)
    try:
        encoder = model.load_encoder()
    except ModelError as error:
        return Verification((Finding("encoder", False, str(error)),))
    findings = [_check_file(model, ENCODER) or Finding("encoder", True, "weights unchanged")]
    packs = {pack_file(name) for name in model.pack_names}
    findings += [
        _check_file(model, name) or Finding(Path(name).stem, True, "unchanged")
        for name in model.files
        if name != ENCODER and name not in packs
    ]
    findings += [_check_pack(model, name, encoder) for name in model.pack_names]
    return Verification(tuple(findings))


def _check_file(model: Model, name: str) -> Finding | None:
    """A finding where the file is not what the model lists, else None."""
    path = model.folder / name
    part = path.stem
    if not path.exists():
        return Finding(part, False, f"{path} is missing. Restore it from a copy.")
    found = sha256(path.read_bytes())
    if found != model.files[name]:
        is_pack = name in {pack_file(pack) for pack in model.pack_names}
        advice = "Remove the pack and add it anew" if is_pack else "Restore it"
        return Finding(
            part, False, f"{path} has changed: sha256 {found[:12]}, expected {model.files[name][:12]}. "
            f"{advice} from a copy.",
        )  # fmt: skip
    return None


def _check_pack(model: Model, name: str, encoder: GeneralEncoder) -> Finding:
    path = model.pack_path(name)
    if changed := _check_file(model, str(path.relative_to(model.folder))):
        return changed
    try:
        pack = model.pack(name)
    except ModelError as error:
        return Finding(name, False, str(error))
    good, sentence = check_outputs(pack, encoder)
    return Finding(name, good, f"{len(pack.organs)} organs, weights unchanged, {sentence}")
