"""A worker thread."""

from __future__ import annotations

import threading


class Worker:
    """Runs `_run` in a thread, which waits for `_changed` and ends when `_closing` is set."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"anytimecl-{name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive() and not self._closing

    def close(self) -> None:
        """Finish the queue, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
