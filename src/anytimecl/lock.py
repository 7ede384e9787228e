"""A lock for many readers and one writer, in which nobody waits for more than one turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TurnLock:
    """Readers share, a writer is alone, and the two kinds take turns.

    A reader who comes while a writer works or waits lets that one writer go first; when it is
    done, every reader who waited enters before the next writer. So a prediction waits for at most
    one update, and a stream of predictions cannot keep an update waiting.

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
        self._writers = 0  # waiting or working
        self._owed = 0  # readers let in by the last writer who have not entered yet
        self._waiting = 0  # readers who wait for the current writer
        self._turn = 0  # writers that have finished
        self.torn = False  # whether a change was interrupted halfway; who mends it says so

    @property
    def turn(self) -> int:
        """How many writers have finished."""
        return self._turn

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold while reading; others may read too."""
        with self._changed:
            if self._writers:
                turn = self._turn
                self._waiting += 1
                try:
                    self._changed.wait_for(lambda: self._turn != turn)
                finally:  # an interrupt may end the wait, and nobody may wait for it then
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
        """Hold while changing things; nobody else is inside."""
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
        """Let in the readers who waited for a writer."""
        self._turn += 1
        self._owed, self._waiting = self._owed + self._waiting, 0
        self._changed.notify_all()
