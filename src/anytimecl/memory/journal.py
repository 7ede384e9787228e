"""What happened, in order: examples learnt, and everything else."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from anytimecl.errors import StoreError
from anytimecl.memory.checks import text_checksum
from anytimecl.memory.contract import Event


class Journal:
    """Events by number, inside whatever transaction is open.

    Learning is not written here: the row of an example says it already, under the same number.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._looked = 0  # the entries that `undoing` was asked about

    def write(self, number: int, kind: str, data: dict[str, Any]) -> None:
        """Add or replace an entry."""
        text = json.dumps(data, ensure_ascii=False)
        entry = (number, kind, text, text_checksum(number, kind, text))
        self._db.execute("INSERT OR REPLACE INTO event VALUES (?, ?, ?, ?)", entry)

    def read(self, after: int, limit: int) -> list[Event]:
        """The next entries, learning among them."""
        page = "SELECT id, 1, NULL, NULL, NULL FROM example WHERE id > :after UNION ALL "
        page += "SELECT number, 0, kind, data, crc FROM event WHERE number > :after "
        page += "ORDER BY 1 LIMIT :limit"
        return self._page(page, {"after": after, "limit": limit})

    def sound(self) -> Iterator[Event]:
        """Every entry written here that is not damaged."""
        for row in self._db.execute("SELECT number, kind, data, crc FROM event"):
            with suppress(StoreError):
                yield _event(*row)

    def of_kinds(self, kinds: Sequence[str], after: int = 0) -> list[Event]:
        """Every entry of some kinds other than `learn`, after a number."""
        wanted = "SELECT number, kind, data, crc FROM event WHERE number > ? AND kind IN "
        wanted += f"({', '.join('?' * len(kinds))}) ORDER BY number"
        return [_event(*row) for row in self._db.execute(wanted, (after, *kinds)).fetchall()]

    def undoing(self, kinds: Sequence[str], until: int) -> list[Event]:
        """Entries of some kinds that take back another, up to a number.

        Each in one answer alone, while the memory is open: it costs what is new.
        """
        since, self._looked = self._looked, max(self._looked, until)
        wanted = "SELECT number, kind, data, crc FROM event WHERE number > ? AND number <= ? "
        wanted += f"AND data LIKE '%\"undoes\"%' AND kind IN ({', '.join('?' * len(kinds))})"
        found = self._db.execute(wanted, (since, until, *kinds)).fetchall()
        return [_event(*row) for row in found]

    def entry(self, number: int) -> Event | None:
        """One that is written here; what was learned is not."""
        wanted = "SELECT number, kind, data, crc FROM event WHERE number = ?"
        row = self._db.execute(wanted, (number,)).fetchone()
        return None if row is None else _event(*row)

    def backwards(self, before: int, limit: int) -> list[Event]:
        """The entries before a number, learning among them, the newest first."""
        page = "SELECT id, 1, NULL, NULL, NULL FROM example WHERE id < :before UNION ALL "
        page += "SELECT number, 0, kind, data, crc FROM event WHERE number < :before "
        page += "ORDER BY 1 DESC LIMIT :limit"
        return self._page(page, {"before": before, "limit": limit})

    def last(self) -> int:
        """The highest number given out."""
        newest = "SELECT max(coalesce((SELECT max(id) FROM example), 0), "
        newest += "coalesce((SELECT max(number) FROM event), 0))"
        return int(self._db.execute(newest).fetchone()[0])

    def damaged(self) -> list[int]:
        """Numbers of the entries whose checksum does not fit."""
        rows = self._db.execute("SELECT number, kind, data, crc FROM event")
        return [row[0] for row in rows if row[3] != text_checksum(*row[:3])]

    def _page(self, page: str, places: dict[str, int]) -> list[Event]:
        return [
            Event(number, "learn", {"example": number}) if learnt else _event(number, *entry)
            for number, learnt, *entry in self._db.execute(page, places).fetchall()
        ]


def _event(number: int, kind: str, text: str, crc: int) -> Event:
    if crc != text_checksum(number, kind, text):
        raise StoreError(f"Event {number} of the memory is damaged: restore a backup.")
    return Event(number, kind, json.loads(text))
