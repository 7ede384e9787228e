"""The latest examples, with small pictures of those that this session was shown.

The memory keeps features and no images. So a picture lives in RAM only, for a while, and goes with
its example or with the process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple


class Entry(NamedTuple):
    """An example as the gallery shows it."""

    id: int
    label: str
    thumbnail: bytes | None


class Recent:
    """A bounded list, newest first.

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
        """The newest."""
        with self._lock:
            self._entries[entry.id] = entry
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def forget(self, *, example: int | None = None, label: str | None = None) -> None:
        """An example, or all of a label, is gone."""
        with self._lock:
            for entry in list(self._entries.values()):
                if entry.id == example or entry.label == label:
                    del self._entries[entry.id]

    def entries(self, count: int | None = None) -> list[Entry]:
        """Newest first."""
        with self._lock:
            return list(reversed(self._entries.values()))[:count]

    def thumbnail(self, example: int) -> bytes | None:
        """JPEG, if there is one."""
        with self._lock:
            entry = self._entries.get(example)
            return entry.thumbnail if entry else None
