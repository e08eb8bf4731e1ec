"""Phantom: synthetic CT bodies, written as a raw dataset like any other."""

from continual_segment.small_phantom.write import DATASETS, write_phantom

__all__ = ["DATASETS", "write_phantom"]
