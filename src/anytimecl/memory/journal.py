"""The journal: the ordered list of events that recovery replays."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
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
        return [row[0] for row in self._db.execute(_EVENTS) if not _is_sound(row)]

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
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    return checked(number, kind, data)


def _is_sound(row: tuple[int, str, str, int]) -> bool:
    try:
        _event(*row)
    except StoreError:
        return False
    return True


def checked(number: int, kind: str, data: Any) -> Event:
    """The entry; StoreError if it lacks what replaying it needs, as a forged one may.

    Those of kinds that the memory does not write may have any fields.

    >>> checked(7, "evict", {"example": 2, "label": "cat"}).data["example"]
    2
    """
    if not isinstance(data, dict):
        raise _forged(number, kind, "no fields")
    needed = _NEEDED.get(kind)
    if needed is None:
        return Event(number, kind, data)
    for name in dict.fromkeys([*needed, *data]):
        if name in _FIELDS and not (name in data and _FIELDS[name](data[name])):
            raise _forged(number, kind, f"no valid {name!r}")
    return Event(number, kind, data)


def _forged(number: int, kind: str, what: str) -> StoreError:
    return StoreError(
        f"Event {number} ({kind!r}) of the memory has {what}, and so cannot be replayed: restore a "
        "backup, or write a memory without it with `anytimecl.memory.rescue`."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_texts(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, list) and all(map(_is_text, value)))


# What was forgotten is deleted from corrections: they need no field.
_NEEDED: dict[str, tuple[str, ...]] = {
    "forget": ("examples",),
    "evict": ("example",),
    "lost": ("first", "last"),
    "relabel": (),
    "merge": (),
    "rename": (),
    "withdraw": ("example",),
}
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "example": _is_number,
    "examples": _are_numbers,
    "first": _is_number,
    "last": _is_number,
    "undoes": _is_number,
    "keys": lambda value: isinstance(value, list),
    "label": _is_text,
    "before": _is_text_or_texts,
}
