"""Outcomes: which models were right before each update, for the page's chart and the metrics.

The file beside the memory has numbers only, no labels or images, so nothing has to be removed from
it when an example is forgotten. Nothing but the chart depends on it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from anytimecl.files import replacing

FILE = "outcomes.csv"
KEPT = 2_000  # outcomes
WINDOW = 50  # outcomes in a running accuracy
log = logging.getLogger("anytimecl.serve")


class Outcome(NamedTuple):
    """An example, and whether each prediction was right before it was learned."""

    example: int
    right: bool  # the blended prediction
    tuned: bool
    original: bool


class History:
    """The latest outcomes, in RAM and, if a folder is given, in a file.

    >>> history = History(None)
    >>> history.add(Outcome(1, True, False, True))
    >>> history.accuracy()
    (1.0, 0.0, 1.0)
    """

    def __init__(self, folder: Path | None, *, keep: bool = True) -> None:
        self._latest: deque[Outcome] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._path: Path | None = None  # of the file, while it can be written
        if folder is not None:
            with suppress(OSError):  # the service works without the chart
                self._latest.extend(_read(folder / FILE))
                if keep:
                    _rewrite(folder / FILE, list(self._latest))
                    self._path = folder / FILE

    def add(self, outcome: Outcome) -> None:
        """Append an outcome."""
        with self._lock:
            self._latest.append(outcome)
            if self._path is not None:
                try:
                    with self._path.open("a", encoding="ascii") as file:
                        file.write(_line(outcome))
                except OSError as error:
                    log.warning("the chart is no longer kept on disk: %s", error)
                    self._path = None

    def latest(self, count: int = KEPT) -> list[Outcome]:
        """The latest outcomes, oldest first."""
        with self._lock:
            return list(self._latest)[-count:]

    def accuracy(self) -> tuple[float, float, float] | None:
        """Accuracies of blend, tuned and original model before updates, over the last WINDOW."""
        last = self.latest(WINDOW)
        if not last:
            return None
        right, tuned, original = (
            sum(item[place] for item in last) / len(last) for place in (1, 2, 3)
        )
        return right, tuned, original


def _line(outcome: Outcome) -> str:
    return ",".join(str(int(value)) for value in outcome) + "\n"


def _read(file: Path) -> list[Outcome]:
    found: deque[Outcome] = deque(maxlen=KEPT)
    if file.exists():
        with file.open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                with suppress(ValueError):  # incomplete after a crash
                    example, *who = (int(word) for word in line.split(","))
                    if len(who) == 3:
                        found.append(Outcome(example, *(bool(value) for value in who)))
    return list(found)


def _rewrite(file: Path, outcomes: list[Outcome]) -> None:
    """Drop old lines, so that the file stays bounded over restarts."""
    with replacing(file) as draft:
        draft.write_text("".join(_line(outcome) for outcome in outcomes), encoding="ascii")
