"""The latest examples, with thumbnails of those learned in this process.

Used if the memory stores no thumbnails. They are in RAM only, and deleted with their examples.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple


class Entry(NamedTuple):
    """An example in the page's gallery."""

    id: int
    label: str
    thumbnail: bytes | None


class Recent:
    """A bounded list of examples.

    >>> recent = Recent([(1, "cat"), (2, "dog")], most=1)
    >>> [entry.label for entry in recent.entries()]
    ['dog']
    """

    def __init__(self, stored: Iterable[tuple[int, str]], most: int) -> None:
        self._most = most
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._lock = threading.Lock()
        for example, label in stored:
            self.add(Entry(example, label, None))

    def add(self, entry: Entry) -> None:
        """Add an example."""
        with self._lock:
            self._entries[entry.id] = entry
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def forget(self, *, example: int | None = None, label: str | None = None) -> None:
        """Remove an example, or all of a label."""
        with self._lock:
            for entry in list(self._entries.values()):
                if entry.id == example or entry.label == label:
                    del self._entries[entry.id]

    def entries(self, count: int | None = None) -> list[Entry]:
        """Entries, newest first."""
        with self._lock:
            return list(reversed(self._entries.values()))[:count]

    def thumbnail(self, example: int) -> bytes | None:
        """The thumbnail (WebP), or None."""
        with self._lock:
            entry = self._entries.get(example)
            return entry.thumbnail if entry else None
