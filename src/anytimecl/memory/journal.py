"""What happened, in order: examples learnt, and everything else."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
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
        rows = self._db.execute(page, {"after": after, "limit": limit}).fetchall()
        return [
            Event(number, "learn", {"example": number}) if learnt else _event(number, *entry)
            for number, learnt, *entry in rows
        ]

    def of_kind(self, kind: str) -> list[Event]:
        """Every entry of one kind other than `learn`."""
        wanted = "SELECT number, kind, data, crc FROM event WHERE kind = ? ORDER BY number"
        return [_event(*row) for row in self._db.execute(wanted, (kind,)).fetchall()]

    def sound(self) -> Iterator[Event]:
        """Every entry written here that is not damaged."""
        for row in self._db.execute("SELECT number, kind, data, crc FROM event"):
            with suppress(StoreError):
                yield _event(*row)

    def censor_labels(self) -> None:
        """Take labels that are gone out of the entries about evicted examples."""
        label = "json_extract(data, '$.label')"
        stale = f"SELECT number, kind, data, crc FROM event WHERE kind = 'evict' AND {label} "
        stale += f"IS NOT NULL AND {label} NOT IN (SELECT text FROM label)"
        for row in self._db.execute(stale).fetchall():
            number, kind, data = _event(*row)
            del data["label"]
            self.write(number, kind, data)

    def last(self) -> int:
        """The highest number given out."""
        newest = "SELECT max(coalesce((SELECT max(id) FROM example), 0), "
        newest += "coalesce((SELECT max(number) FROM event), 0))"
        return int(self._db.execute(newest).fetchone()[0])

    def damaged(self) -> list[int]:
        """Numbers of the entries whose checksum does not fit."""
        rows = self._db.execute("SELECT number, kind, data, crc FROM event")
        return [row[0] for row in rows if row[3] != text_checksum(*row[:3])]


def _event(number: int, kind: str, text: str, crc: int) -> Event:
    if crc != text_checksum(number, kind, text):
        raise StoreError(f"Event {number} of the memory is damaged: restore a backup.")
    return Event(number, kind, json.loads(text))
