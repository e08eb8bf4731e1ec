"""Phantom: synthetic CT bodies with known anatomy, written as a raw dataset like any other."""

from continual_segment.phantom.datasets import DATASETS
from continual_segment.phantom.write import write_phantom

__all__ = ["DATASETS", "write_phantom"]
