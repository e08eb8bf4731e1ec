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


class WorkerError(ContinualSegmentError):
    """A worker that could not finish a task: it died, took too long or lacks something. Others may do it."""


class UnfitWorkerError(WorkerError):
    """A worker that can do no task of a run: other software, another model, storage that is not shared."""


def sentence_of(error: Exception) -> str:
    """For a list of failures; of our own bugs, their kind as well."""
    known = isinstance(error, (ContinualSegmentError, OSError, MemoryError))
    text = str(error) or type(error).__name__
    return text if known else f"an unexpected {type(error).__name__} ({text}), our mistake: please report it"
