"""The labels offered on the page: the learned ones, plus and minus a list kept per memory.

The list is a file beside the memory and does not affect what is learned.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from anytimecl.files import replacing
from anytimecl.labels import clean_label
from anytimecl.serve.problems import Problem

FILE = "choices.json"
VERSION = 1
MOST = 2_000  # in either list
log = logging.getLogger("anytimecl.serve")


class Chosen(NamedTuple):
    """Labels offered although they are not learned (`own`), and learned ones that are `hidden`."""

    own: list[str]
    hidden: list[str]


class Choices:
    """Both lists, in RAM and, if a folder is given, in a file.

    >>> choices = Choices(None)
    >>> choices.change(["cat", "dog"], [], taught=["cat"])
    Chosen(own=['cat', 'dog'], hidden=[])
    >>> choices.change([], ["cat", "dog"], taught=["cat"])
    Chosen(own=[], hidden=['cat'])
    """

    def __init__(self, folder: Path | None, *, keep: bool = True) -> None:
        self._path = None if folder is None else folder / FILE
        self._keep = keep
        self._lock = threading.Lock()
        self._own, self._hidden = _read(self._path)

    def told(self) -> Chosen:
        """The current lists."""
        with self._lock:
            return Chosen(self._own, self._hidden)

    def change(
        self, add: Sequence[str], remove: Sequence[str], *, taught: Collection[str]
    ) -> Chosen:
        """Offer labels, and stop offering others; `taught` are the learned labels.

        Only learned labels need to be hidden; other removed labels are deleted.
        """
        named, left = [clean_label(one) for one in add], [clean_label(one) for one in remove]
        with self._lock:
            own = [one for one in dict.fromkeys([*self._own, *named]) if one not in left]
            hidden = [
                one
                for one in dict.fromkeys([*self._hidden, *left])
                if one in taught and one not in named
            ]
            if max(len(own), len(hidden)) > MOST:
                raise Problem(409, f"A memory has at most {MOST:,} labels to choose from.")
            self._own, self._hidden = own, hidden
            self._write()
            return Chosen(own, hidden)

    def _write(self) -> None:
        if self._path is None or not self._keep:
            return
        content = {"version": VERSION, "own": self._own, "hidden": self._hidden}
        try:
            with replacing(self._path) as draft:
                draft.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        except OSError as error:
            log.warning("the labels to choose from are not kept on disk: %s", error)


def _read(path: Path | None) -> tuple[list[str], list[str]]:
    if path is None or not path.exists():
        return [], []
    with suppress(OSError, ValueError, TypeError, KeyError):
        content = json.loads(path.read_text("utf-8"))
        if isinstance(content, dict) and content.get("version") == VERSION:
            own, hidden = (
                [clean_label(one) for one in content[part]][:MOST] for part in ("own", "hidden")
            )
            return own, hidden
    log.warning("the labels to choose from cannot be read in %s; they are taken as none", path)
    return [], []
