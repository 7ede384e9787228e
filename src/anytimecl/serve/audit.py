"""The audit log: who learned, changed and undid what, as JSON Lines beside the memory.

Examples are identified by number. Labels and images are not logged, so nothing has to be removed
here when an example is forgotten.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

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
                with self._path.open("a+b") as file:
                    if file.tell():
                        file.seek(-1, os.SEEK_END)
                        if file.read(1) != b"\n":  # a crash, or a full disk, cut the line short
                            file.write(b"\n")
                    file.write(line.encode("ascii"))
            except OSError as error:
                log.error("the audit trail lacks %s: %s", line.strip(), error)

    def read(self, after: int, limit: int) -> bytes:
        """Up to `limit` lines, from line `after` on."""
        if self._path is None or not self._path.exists():
            return b""
        with self._path.open("rb") as lines:
            return b"".join(map(_whole, islice(lines, after, after + limit)))


def _whole(line: bytes) -> bytes:
    """The line; one of its own in place of one that was cut short, so that each line is JSON.

    >>> _whole(b'{"time": "20')
    b'{"action": "cut short"}\\n'
    """
    return line if line.endswith(b"}\n") else b'{"action": "cut short"}\n'
