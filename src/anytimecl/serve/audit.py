"""The audit log: who learned, changed and undid what, as JSON Lines beside the memory.

Examples are identified by number. Labels and images are not logged, so nothing has to be removed
here when an example is forgotten.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from itertools import islice
from pathlib import Path
from typing import IO, Any

from anytimecl.serve.asking import ASKER
from anytimecl.serve.logs import moment

FILE = "audit.jsonl"
log = logging.getLogger("anytimecl.serve")


class Audit:
    """An append-only log; without a folder, nothing is logged.

    >>> audit = Audit(None)
    >>> audit.add("learned", example=1)
    >>> audit.read(0, 10)
    b''
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._file: IO[str] | None = None
        self._lock = threading.Lock()

    def add(self, action: str, **what: Any) -> None:
        """Log an action of the current request's client. Write errors are logged, not raised."""
        if self._path is None:
            return
        asker = ASKER.get()
        about = {"time": moment(time.time()), "who": asker.name, "request": asker.request}
        line = json.dumps({**about, "action": action, **what}) + "\n"
        with self._lock:
            try:
                if self._file is None:
                    self._file = self._path.open("a", encoding="ascii")
                    if self._file.tell() and not _ends_with_a_line(self._path):
                        self._file.write("\n")  # the last line is incomplete after a crash
                self._file.write(line)
                self._file.flush()
            except OSError as error:
                log.error("the audit trail lacks %s: %s", line.strip(), error)

    def read(self, after: int, limit: int) -> bytes:
        """Up to `limit` lines, from line `after` on."""
        if self._path is None or not self._path.exists():
            return b""
        with self._path.open("rb") as lines:
            return b"".join(map(_whole, islice(lines, after, after + limit)))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as error:  # the memory must still be closed
                    log.error("the audit trail lacks its last lines: %s", error)
                self._file = None


def _whole(line: bytes) -> bytes:
    """The line; one of its own in place of what a crash cut short, so that each line is JSON.

    >>> _whole(b'{"time": "20')
    b'{"action": "cut short by a crash"}\\n'
    """
    return line if line.endswith(b"}\n") else b'{"action": "cut short by a crash"}\n'


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
