"""A consolidation that was promised and is not done yet, so that a restart can keep the promise."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.files import replacing

FILE = "consolidate.json"
TRIES = 3  # after so many it may be what ends the process


class Promise(NamedTuple):
    """How long to practise, and how often that was begun."""

    epochs: int
    begun: int


class Pending:
    """At most one promise, beside the memory; without a folder, none is kept.

    >>> Pending(None).read() is None
    True
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE

    def read(self) -> Promise | None:
        """What is still to be done; None where there is nothing, or where it was tried enough."""
        if self._file is None:
            return None
        try:
            told = json.loads(self._file.read_text("ascii"))
            promise = Promise(int(told["epochs"]), int(told["begun"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return promise if promise.epochs >= 1 and promise.begun < TRIES else None

    def write(self, promise: Promise) -> None:
        """It is to be done."""
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
        """It is done, or will never be."""
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
