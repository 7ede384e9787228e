"""The journal: the ordered list of events that recovery replays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from anytimecl.errors import StoreError
from anytimecl.memory.checks import text_checksum
from anytimecl.memory.contract import Event

_EVENTS = "SELECT number, kind, data, crc FROM event"


class Journal:
    """Events by number, within the caller's transaction.

    `learn` events are not stored: they are the rows of the examples, with the same number.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._looked = 0  # last entry that `undoing` has read

    def write(self, number: int, kind: str, data: dict[str, Any]) -> None:
        """Add or replace an entry."""
        text = json.dumps(data, ensure_ascii=False)
        entry = (number, kind, text, text_checksum(number, kind, text))
        self._db.execute("INSERT OR REPLACE INTO event VALUES (?, ?, ?, ?)", entry)

    def read(self, after: int, limit: int) -> list[Event]:
        """The next entries, including `learn`."""
        page = "SELECT id, 1, NULL, NULL, NULL FROM example WHERE id > :after UNION ALL "
        page += "SELECT number, 0, kind, data, crc FROM event WHERE number > :after "
        page += "ORDER BY 1 LIMIT :limit"
        return self._page(page, {"after": after, "limit": limit})

    def sound(self) -> Iterator[Event]:
        """Every undamaged entry except `learn`."""
        for row in self._db.execute(_EVENTS):
            with suppress(StoreError):
                yield _event(*row)

    def of_kinds(self, kinds: Sequence[str], after: int = 0) -> list[Event]:
        """Every entry of some kinds other than `learn`, after a number."""
        wanted = f"number > ? AND kind IN ({', '.join('?' * len(kinds))}) ORDER BY number"
        return self._events(wanted, after, *kinds)

    def undoing(self, kinds: Sequence[str], until: int) -> list[Event]:
        """Entries of some kinds that undo another, up to a number.

        Each is returned once while the memory is open, so that a call reads only new entries.
        """
        since, self._looked = self._looked, max(self._looked, until)
        wanted = "number > ? AND number <= ? AND data LIKE '%\"undoes\"%' "
        wanted += f"AND kind IN ({', '.join('?' * len(kinds))})"
        return self._events(wanted, since, until, *kinds)

    def entry(self, number: int) -> Event | None:
        """An entry other than `learn`, or None."""
        return next(iter(self._events("number = ?", number)), None)

    def backwards(self, before: int, limit: int) -> list[Event]:
        """The entries before a number, including `learn`, newest first."""
        page = "SELECT id, 1, NULL, NULL, NULL FROM example WHERE id < :before UNION ALL "
        page += "SELECT number, 0, kind, data, crc FROM event WHERE number < :before "
        page += "ORDER BY 1 DESC LIMIT :limit"
        return self._page(page, {"before": before, "limit": limit})

    def last(self) -> int:
        """The highest number in use."""
        newest = "SELECT max(coalesce((SELECT max(id) FROM example), 0), "
        newest += "coalesce((SELECT max(number) FROM event), 0))"
        return int(self._db.execute(newest).fetchone()[0])

    def damaged(self) -> list[int]:
        """Numbers of damaged entries."""
        rows = self._db.execute(_EVENTS)
        return [row[0] for row in rows if row[3] != text_checksum(*row[:3])]

    def _events(self, which: str, *values: str | int) -> list[Event]:
        rows = self._db.execute(f"{_EVENTS} WHERE {which}", values).fetchall()
        return [_event(*row) for row in rows]

    def _page(self, page: str, places: dict[str, int]) -> list[Event]:
        return [
            Event(number, "learn", {"example": number}) if learnt else _event(number, *entry)
            for number, learnt, *entry in self._db.execute(page, places).fetchall()
        ]


def _event(number: int, kind: str, text: str, crc: int) -> Event:
    if crc != text_checksum(number, kind, text):
        raise StoreError(f"Event {number} of the memory is damaged: restore a backup.")
    return Event(number, kind, json.loads(text))
