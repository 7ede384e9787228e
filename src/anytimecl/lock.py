"""A readers-writer lock in which readers and writers take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TurnLock:
    """Readers share, a writer is exclusive, and neither starves the other.

    A reader that arrives while a writer is active or waiting lets one writer go first; then every
    waiting reader enters before the next writer. So a prediction waits for at most one update,
    and a stream of predictions cannot hold up an update.

    >>> lock = TurnLock()
    >>> with lock.reading(), lock.reading():
    ...     pass
    >>> with lock.writing():
    ...     pass
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reading = 0
        self._writing = False
        self._writers = 0  # active or waiting
        self._owed = 0  # readers admitted by the last writer that have not entered yet
        self._waiting = 0  # readers waiting for the current writer
        self._turn = 0  # writers that have finished
        self.torn = False  # whether an update was interrupted; reset by whoever repairs it

    @property
    def turn(self) -> int:
        """Number of writers that have finished."""
        return self._turn

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Shared access."""
        with self._changed:
            if self._writers:
                turn = self._turn
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: self._turn != turn)
                finally:  # if an interrupt ends the wait, no writer may wait for this reader
                    if self._turn == turn:
                        self._waiting -= 1
                    else:
                        self._owed -= 1
                        self._changed.notify_all()
            self._reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Exclusive access."""
        with self._changed:
            self._writers += 1
            try:
                self._changed.wait_for(lambda: not (self._writing or self._reading or self._owed))
            except BaseException:  # an interrupt
                self._writers -= 1
                if not self._writing:
                    self._next_turn()
                raise
            self._writing = True
        try:
            yield
        except BaseException:
            self.torn = True
            raise
        finally:
            with self._changed:
                self._writing = False
                self._writers -= 1
                self._next_turn()

    def _next_turn(self) -> None:
        """Admit the readers that waited for a writer."""
        self._turn += 1
        self._owed, self._waiting = self._owed + self._waiting, 0
        self._changed.notify_all()
