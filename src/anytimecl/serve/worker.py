"""Worker threads."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Worker:
    """Threads that wait for `_changed`, and end when `_closing` is set."""

    def __init__(self, name: str, *runs: Callable[[], None]) -> None:
        self._changed = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=run, name=f"anytimecl-{name}-{number}", daemon=True)
            for number, run in enumerate(runs)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Whether all threads are running."""
        return not self._closing and all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Finish the queue, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
