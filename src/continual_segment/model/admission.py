"""Admit a pack to a model: only one that runs on its encoder and answers as when it was made.

Reading a pack has checked its description and the shapes of its weights already (`checks.py`). What remains
needs the encoder or reads every weight: the weights are finite, the organs are those of our table, and the
outputs on the probe volume are the stored ones.
"""

from __future__ import annotations

import torch

from continual_segment.errors import ModelError
from continual_segment.model.checks import check_finite
from continual_segment.model.fingerprint import environment, fingerprint_tensors, probe_logits, sampled
from continual_segment.model.pack import OrganPack
from continual_segment.names import printable
from continual_segment.networks import GeneralEncoder
from continual_segment.organs import check_table

TOLERANCE = 1e-3  # of logits, between processors and torch builds that round differently


def admit(pack: OrganPack, encoder: GeneralEncoder) -> None:
    """Raise ModelError unless the pack can be part of a model with this encoder."""
    assert pack.network == encoder.config  # the model has compared fingerprints and sizes
    try:
        check_table(pack.organs, ModelError)
        check_finite(pack.weights, "decoder")
    except ModelError as error:
        raise ModelError(f"Pack '{pack.name}' cannot be used. {error}") from error
    good, sentence = check_outputs(pack, encoder)
    if not good:
        raise ModelError(
            f"Pack '{pack.name}' cannot be used: its weights are complete, {sentence} Get the pack again."
        )


def check_outputs(pack: OrganPack, encoder: GeneralEncoder) -> tuple[bool, str]:
    """Whether the pack still answers on the probe as when it was made."""
    logits = probe_logits(encoder, pack.decoder())
    if not torch.isfinite(logits).all():
        return False, "but its outputs are not finite."
    if fingerprint_tensors({"logits": logits}) == pack.probe_sha256:
        return True, "outputs bit-identical"
    difference = float((sampled(logits) - pack.probe).abs().max())
    if pack.probe_environment == environment() or not difference <= TOLERANCE:  # NaN is no agreement
        return False, f"but its outputs differ by {difference:.2g} from those it was made with."
    return True, (
        f"outputs equal within {difference:.1g} (made with {printable(pack.probe_environment)}, which rounds "
        "differently)"
    )
