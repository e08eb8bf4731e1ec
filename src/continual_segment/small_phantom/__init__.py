"""The demo's phantom: a simple body of some twenty organs, written and learned in minutes.

Its datasets are small relatives of those in `phantom`, which has all 143 organs.
"""

from continual_segment.small_phantom.write import DATASETS, dataset_folder, write_phantom

__all__ = ["DATASETS", "dataset_folder", "write_phantom"]
