"""The model on disk: one frozen encoder and any number of organ packs."""

from continual_segment.model.model import Model
from continual_segment.model.pack import OrganPack
from continual_segment.model.verify import Verification, verify

__all__ = ["Model", "OrganPack", "Verification", "verify"]
