"""A consolidation that is not finished, stored so that it is restarted with the service."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.files import replacing

FILE = "consolidate.json"
TRIES = 3  # then the job itself may be what crashes the process


class Promise(NamedTuple):
    """Number of epochs, and how often the job was started."""

    epochs: int
    begun: int


class Pending:
    """At most one job, in a file beside the memory; without a folder, nothing is stored.

    >>> Pending(None).read() is None
    True
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE

    def read(self) -> Promise | None:
        """The unfinished job; None if there is none or it was tried too often."""
        if self._file is None:
            return None
        try:
            told = json.loads(self._file.read_text("ascii"))
            promise = Promise(int(told["epochs"]), int(told["begun"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return promise if promise.epochs >= 1 and promise.begun < TRIES else None

    def write(self, promise: Promise) -> None:
        """Store a job."""
        if self._file is None:
            return
        try:
            with replacing(self._file) as draft:
                draft.write_text(json.dumps(promise._asdict()), "ascii")
        except OSError as error:
            raise StoreError(
                f"What is to be done cannot be noted in {self._file}: {error}"
            ) from error

    def clear(self) -> None:
        """Remove the job."""
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
