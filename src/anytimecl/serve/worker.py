"""A thread that works until it is told to end."""

from __future__ import annotations

import threading


class Worker:
    """Does `_run` in a thread of its own, which waits for `_changed` and minds `_closing`."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"anytimecl-{name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether work is still being done."""
        return self._thread.is_alive() and not self._closing

    def close(self) -> None:
        """Finish what waits, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
