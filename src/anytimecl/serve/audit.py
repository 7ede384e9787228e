"""Who taught, changed and took back what: one line of JSON each, in a file beside the memory.

Examples are named by their numbers. There is no label in it and no image, so that what is forgotten
leaves nothing here but the fact.
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
    """A trail that only grows; without a folder, none is kept.

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
        """Something was done by whoever is asking. A failure is logged and stops nothing."""
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
                        self._file.write("\n")  # a crash cut the last one short
                self._file.write(line)
                self._file.flush()
            except OSError as error:
                log.error("the audit trail lacks %s: %s", line.strip(), error)

    def read(self, after: int, limit: int) -> bytes:
        """Lines, from number `after` on."""
        if self._path is None or not self._path.exists():
            return b""
        with self._path.open("rb") as lines:
            return b"".join(islice(lines, after, after + limit))

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as error:  # the memory must still be closed
                    log.error("the audit trail lacks its last lines: %s", error)
                self._file = None


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
