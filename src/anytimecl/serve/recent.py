"""Thumbnails of the latest examples learned in this process, for a memory that stores none.

They are in RAM only, and deleted with their examples.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable


class Recent:
    """A bounded number of thumbnails (WebP), by example.

    >>> recent = Recent(most=1)
    >>> recent.add(1, b"one")
    >>> recent.add(2, b"two")
    >>> recent.thumbnail(1), recent.thumbnail(2)
    (None, b'two')
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._thumbnails: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, example: int, thumbnail: bytes) -> None:
        """Add the thumbnail of an example."""
        with self._lock:
            self._thumbnails[example] = thumbnail
            while len(self._thumbnails) > self._most:
                self._thumbnails.popitem(last=False)

    def keep(self, stored: Callable[[int], bool]) -> None:
        """Drop those of examples that are not stored any more."""
        with self._lock:
            for example in [one for one in self._thumbnails if not stored(one)]:
                del self._thumbnails[example]

    def thumbnail(self, example: int) -> bytes | None:
        """The thumbnail, or None."""
        with self._lock:
            return self._thumbnails.get(example)
