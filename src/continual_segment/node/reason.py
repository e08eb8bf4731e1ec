"""Why something failed, in one line for logs and status that names no patient."""

from __future__ import annotations

from continual_segment.errors import ContinualSegmentError
from continual_segment.names import printable

LONGEST = 400


def reason_of(error: Exception) -> str:
    """For logs and status, without words of the patient's headers.

    The first line alone, because lists of series have descriptions; of an unknown error only its kind.
    """
    if isinstance(error, (ContinualSegmentError, OSError)):
        return printable(str(error).splitlines()[0] if str(error) else type(error).__name__, LONGEST)
    return f"an unexpected {type(error).__name__}; `conseg --debug listen` shows where it happened"
