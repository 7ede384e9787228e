"""The records that are read again and again, kept in RAM under a cap of bytes."""

from __future__ import annotations

from collections import OrderedDict

_ENTRY = 200  # bytes of Python's own around each record: object, dictionary entry, key


class Cache:
    """Forgets the record unused for longest once the cap is reached.

    >>> cache = Cache(1000)
    >>> for example in range(4):
    ...     cache.put(example, bytes(200))
    >>> cache.get(0) is None, cache.get(3) == bytes(200)
    (True, True)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._records: OrderedDict[int, bytes] = OrderedDict()

    def get(self, example: int) -> bytes | None:
        record = self._records.get(example)
        if record is not None:
            self._records.move_to_end(example)
        return record

    def put(self, example: int, record: bytes) -> None:
        self.drop(example)
        self._records[example] = record
        self._bytes += len(record) + _ENTRY
        while self._bytes > self._limit:
            _, oldest = self._records.popitem(last=False)
            self._bytes -= len(oldest) + _ENTRY

    def drop(self, example: int) -> None:
        record = self._records.pop(example, None)
        if record is not None:
            self._bytes -= len(record) + _ENTRY

    def clear(self) -> None:
        self._records.clear()
        self._bytes = 0
