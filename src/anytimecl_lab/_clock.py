"""How long a run may take, so that a suite goes in parts."""

from __future__ import annotations

import math
import time

MINUTE = 60.0


class OutOfTime(Exception):
    """The time of this part is over; what is done is on disk."""


class Clock:
    """Counts down from now; without `minutes` there is all the time in the world."""

    def __init__(self, minutes: float | None = None) -> None:
        self._until = math.inf if minutes is None else time.monotonic() + MINUTE * minutes

    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()

    def check(self) -> None:
        """Between two things that can be resumed."""
        if self.left() <= 0:
            raise OutOfTime
