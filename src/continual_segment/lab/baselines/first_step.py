"""Which first step a model descends from.

Methods can be compared only where all of them start from one training of the first dataset. A later step may
change the encoder, so its pack's card keeps the fingerprint of the encoder that the first step left.
"""

from __future__ import annotations

from continual_segment.model import Model

FIRST_STEP = "first_step"
"""Entry of a card."""


def first_step_of(model: Model) -> str:
    """Fingerprint of the first step's encoder; empty where an earlier version did not record it.

    Packs without a comparison method in their card are ours: their encoder is the first step's.
    """
    cards = [model.pack(name).card for name in model.pack_names]
    recorded = {card.get(FIRST_STEP, "") for card in cards if "method" in card}
    if not recorded:
        return model.encoder_fingerprint
    return recorded.pop() if len(recorded) == 1 else ""
