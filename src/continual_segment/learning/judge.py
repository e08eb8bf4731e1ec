"""Judge: Dice of candidate decoders on the validation windows of a step, measured once.

What was measured is stored in the folder of the run with a fingerprint of the weights; a resumed run reads
it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from continual_segment.files.atomic import write_json
from continual_segment.learning.train_decoder import FrozenStep
from continual_segment.learning.validation import CoveringWindows, dice_of_decoders
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.networks import Decoder
from continual_segment.training.distributed import on_main
from continual_segment.training.update import forward_precision

Key = TypeVar("Key")
Answers = Callable[[list[Tensor]], Iterable[tuple[Key, Tensor]]]
"""From features to the logits of several decoders."""


class Judge:
    """Scores decoders on windows of the validation scans."""

    def __init__(self, step: FrozenStep, windows: int) -> None:
        self.step, self.organs, self.device = step, step.organs, step.settings.device
        self.windows = CoveringWindows(step.source.dataset, step.source.patches.size, windows)
        self.seconds = 0.0
        """Spent on measuring, now or in the run that was resumed."""

    def dice_of_all(self, answers: Answers[Key]) -> dict[Key, float]:
        """The Dice of each, in the precision of the training."""

        def logits(images: Tensor) -> Iterator[tuple[Key, Tensor]]:
            with forward_precision(self.step.settings):
                yield from answers(self.step.features(images))

        title = f"judging {self.step.name}"
        return dice_of_decoders(logits, self.windows, self.organs, self.device, title)

    def dice_of(self, decoder: Decoder, file: str) -> float:
        """The Dice of one."""

        def compute() -> float:
            return self.dice_of_all(lambda features: [(None, decoder(features))])[None]

        return self.remember(file, decoder.state_dict(), compute)

    def remember(
        self, file: str, weights: Mapping[str, Tensor], compute: Callable[[], Any], *settings: object
    ) -> Any:
        """What was computed for these weights, data and settings before, or now; by one process alone."""
        path = self.step.run / f"{file}.json"
        places = [[case.name, *corner] for case, corner in self.windows.places]
        data = self.step.source.dataset.fingerprint
        precision = self.step.settings.precision
        signature = fingerprint_data([fingerprint_tensors(weights), places, data, precision, *settings])
        kept = on_main(lambda: stored_or_computed(path, signature, compute))
        self.seconds += kept["seconds"]
        return kept["result"]


def stored_or_computed(path: Path, signature: str, compute: Callable[[], Any]) -> dict[str, Any]:
    """A file's result and the seconds that it took, if it has this signature; else computed and stored."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("signature") == signature:
        return kept
    started = time.monotonic()
    result = compute()
    kept = {"signature": signature, "seconds": time.monotonic() - started, "result": result}
    write_json(path, kept)
    return kept
