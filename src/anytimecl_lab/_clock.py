"""Time limits, so that a suite can be run in parts."""

from __future__ import annotations

import math
import time

MINUTE = 60.0


class OutOfTime(Exception):
    """The time limit is reached; finished runs are on disk."""


class Clock:
    """A countdown; unlimited without `minutes`."""

    def __init__(self, minutes: float | None = None) -> None:
        self._until = math.inf if minutes is None else time.monotonic() + MINUTE * minutes

    def left(self) -> float:
        """Seconds left."""
        return self._until - time.monotonic()

    def check(self) -> None:
        """Raise `OutOfTime` if the time is over; call between resumable parts."""
        if self.left() <= 0:
            raise OutOfTime
