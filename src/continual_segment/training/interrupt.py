"""Ctrl-C and SIGTERM stop a loop after the current update, when its state is complete."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from continual_segment.training.distributed import in_group


class StopRequest:
    """While entered, the first signal only sets `requested`; the second one interrupts at once.

    Of several processes, none is interrupted: a batch system signals them itself, and torchrun does so again.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not in_group():
            raise KeyboardInterrupt
        self.requested = True
