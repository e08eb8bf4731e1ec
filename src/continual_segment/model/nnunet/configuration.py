"""One configuration of plans.json: its network, its window and its preprocessing, read together.

In:  plans.json as parsed, the name of a configuration
Out: PlannedNetwork
"""

from __future__ import annotations

from dataclasses import dataclass

from continual_segment.model.nnunet.architecture import NnunetArchitecture, read_architecture
from continual_segment.model.nnunet.plans import (
    Plans,
    Preprocessing,
    inherited,
    read_configuration,
    read_preprocessing,
)
from continual_segment.networks.blocks import Kernel


@dataclass(frozen=True)
class PlannedNetwork:
    """What a configuration asks for."""

    architecture: NnunetArchitecture
    patch_size: Kernel
    preprocessing: Preprocessing

    @classmethod
    def read(cls, plans: Plans, configuration: str, where: str) -> PlannedNetwork:
        """Raise where it is no configuration of one 3D network; `where` names plans.json in errors."""
        settings = inherited(plans, configuration, where)
        found = read_configuration(settings, configuration, where)
        z, y, x = found.patch_size
        architecture = read_architecture(settings, found.patch_size, where)
        return cls(architecture, (z, y, x), read_preprocessing(plans, found, where))
