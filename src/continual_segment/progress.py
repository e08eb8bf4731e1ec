"""Progress bars, which one switch hides everywhere: `--quiet`, or in a program

logging.getLogger("continual_segment.progress").setLevel("WARNING")
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

log = logging.getLogger(__name__)
if log.level == logging.NOTSET:  # bars are shown unless a level was set here, whatever level messages have
    log.setLevel(logging.INFO)


class ProgressBar(tqdm):
    """With a lock of this process alone: tqdm's own is a semaphore of the system, which a worker that is
    terminated would leave behind, with a warning at the end of the command."""


ProgressBar.set_lock(threading.RLock())


def progress_bar(
    iterable: Iterable[Any] | None = None, *, disable: bool | None = False, **options: Any
) -> tqdm:
    """A bar of tqdm; `disable=None` hides it where there is no terminal."""
    hidden = disable or not log.isEnabledFor(logging.INFO)
    return ProgressBar(iterable, disable=True if hidden else disable, **options)
