"""The methods of the benchmark by name: the class that implements each, and one line of help.

This module imports nothing heavy, so that `conseg benchmark --help` prints the table without loading torch.
A new method is one file in `lab/baselines/` and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodEntry:
    """One line of METHODS."""

    implementation: str
    """Module and class in `lab/baselines/`."""
    summary: str
    """For the help text."""


METHODS: dict[str, MethodEntry] = {
    "ours": MethodEntry(
        "organ_packs.OrganPacks", "a frozen encoder and one organ pack per dataset, as `conseg learn`"
    ),
    "fine-tuning": MethodEntry(
        "fine_tuning.FineTuning", "one network, trained on without protection: the control"
    ),
    "mib": MethodEntry("mib.MiB", "one network; losses that model the background, distilled outputs"),
    "ilt": MethodEntry("ilt.ILT", "MiB's losses on a frozen encoder"),
    "plop": MethodEntry("plop.PLOP", "one network; distilled pooled features, pseudo-labels of old organs"),
    "lismo": MethodEntry("lismo.LISMO", "MiB with a memory of one prototype per organ"),
    "rcil": MethodEntry("rcil.RCIL", "MiB with two branches per convolution, distilled pooled features"),
    "unfreezing": MethodEntry(
        "own_decoder.Unfreezing", "one decoder per dataset on an encoder that keeps training"
    ),
    "upper-bound": MethodEntry("own_decoder.UpperBound", "one separate network per dataset"),
}
