"""Phantom: synthetic CT bodies with known anatomy, written as a raw dataset like any other."""

from continual_segment.lab.phantom.datasets import DATASETS
from continual_segment.lab.phantom.write import dataset_folder, write_phantom

__all__ = ["DATASETS", "dataset_folder", "write_phantom"]
