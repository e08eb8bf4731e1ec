"""The few exceptions a user can meet.

Each message is a sentence for that user: the file, what was found, what was expected, what to do.
The command line prints it and exits with code 2; anything else is our bug and keeps its traceback.
"""


class ContinualSegmentError(Exception):
    """What a user can cause and fix."""


class ScanError(ContinualSegmentError):
    """A file that is no readable scan or label map."""


class DatasetError(ContinualSegmentError):
    """A dataset that cannot be learned from as it is."""


class ModelError(ContinualSegmentError):
    """A model folder or pack that is damaged, locked or does not fit."""


class ConfigError(ContinualSegmentError):
    """A preset, config file or option with a value that cannot be."""
