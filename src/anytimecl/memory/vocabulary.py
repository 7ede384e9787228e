"""The label texts, each stored once, and the sets of candidates, each stored once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable

from anytimecl.errors import StoreError
from anytimecl.memory.checks import as_bytes, text_checksum
from anytimecl.memory.database import is_damage

LABELS_IN_RAM = 1 << 20  # of sets of candidates; with more, the next one begins anew


class Vocabulary:
    """Texts by number, inside whatever transaction is open; whoever rolls back calls `reset`.

    Numbers are never given out twice, so that one seen a moment ago still means the same.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sets: dict[int, tuple[str, ...]] = {}  # as read, so that equal ones share
        self._held = 0  # labels in them
        self._last: tuple[tuple[str, ...], int] | None = None  # as written, with its number

    def reset(self) -> None:
        """Trust nothing but the tables."""
        self._sets.clear()
        self._held, self._last = 0, None

    def add_example(self, text: str) -> int:
        """Count one example more; a label comes with its first one. Returns its number."""
        known = self._db.execute("SELECT id FROM label WHERE text = ?", (text,)).fetchone()
        if known:
            more = "UPDATE label SET examples = examples + 1 WHERE id = ?"
            self._db.execute(more, known)
            return int(known[0])
        new = "INSERT INTO label (text, examples) VALUES (?, 1)"
        number = self._db.execute(new, (text,)).lastrowid
        assert number is not None
        crc = text_checksum(number, text)
        self._db.execute("UPDATE label SET crc = ? WHERE id = ?", (crc, number))
        return number

    def rename(self, number: int, text: str) -> None:
        """Another text for a label; no other one may have it."""
        change = "UPDATE label SET text = ?, crc = ? WHERE id = ?"
        self._db.execute(change, (text, text_checksum(number, text), number))

    def number(self, text: str) -> int | None:
        """Of a label, if there is one."""
        known = self._db.execute("SELECT id FROM label WHERE text = ?", (text,)).fetchone()
        return known and int(known[0])

    def drop_example(self, number: int) -> None:
        """Count one example less; a label goes with its last one."""
        less = "UPDATE label SET examples = examples - 1 WHERE id = ?"
        self._db.execute(less, (number,))
        self._db.execute("DELETE FROM label WHERE id = ? AND examples <= 0", (number,))

    def texts(self) -> dict[int, str]:
        """The labels by number, without those that are damaged."""
        try:
            rows = self._db.execute("SELECT id, text, crc FROM label").fetchall()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            # The index over the texts has them a second time.
            whole = "SELECT id, text FROM label INDEXED BY sqlite_autoindex_label_1"
            return dict(self._db.execute(f"{whole} WHERE text > ''").fetchall())
        return {id_: text for id_, text, crc in rows if crc == text_checksum(id_, text)}

    def text(self, number: int) -> str:
        """One label."""
        wanted = "SELECT text, crc FROM label WHERE id = ?"
        row = self._db.execute(wanted, (number,)).fetchone()
        if row is None or row[1] != text_checksum(number, row[0]):
            raise StoreError(f"Label {number} of the memory is damaged: restore a backup.")
        return str(row[0])

    def counts(self) -> dict[str, int]:
        """How many examples each label has, in order of first appearance."""
        rows = self._db.execute("SELECT id, text, examples, crc FROM label ORDER BY id")
        return {text: count for id_, text, count, crc in rows if crc == text_checksum(id_, text)}

    def largest(self) -> int:
        """The label with most examples; of several the one known for longest."""
        most = "SELECT id FROM label ORDER BY examples DESC, id LIMIT 1"
        return int(self._db.execute(most).fetchone()[0])

    def total(self) -> int:
        """How many examples there are."""
        return int(self._db.execute("SELECT coalesce(sum(examples), 0) FROM label").fetchone()[0])

    def add_candidates(self, labels: tuple[str, ...]) -> int:
        """The number of a set of candidates, stored if it is new."""
        if self._last is not None and self._last[0] == labels:
            return self._last[1]
        text = json.dumps(labels, ensure_ascii=False)
        digest = _digest(text)
        wanted = "SELECT id FROM candidates WHERE digest = ?"
        known = self._db.execute(wanted, (digest,)).fetchone()
        new = "INSERT INTO candidates (digest, labels) VALUES (?, ?)"
        number = known[0] if known else self._db.execute(new, (digest, text)).lastrowid
        assert isinstance(number, int)
        self._last = labels, number
        return number

    def candidates(self, number: int | None) -> tuple[str, ...] | None:
        """A set of candidates as it was given."""
        if number is None:
            return None
        if number not in self._sets:
            wanted = "SELECT digest, labels FROM candidates WHERE id = ?"
            row = self._db.execute(wanted, (number,)).fetchone()
            if row is None or row[0] != _digest(row[1]):
                told = f"The set of candidates {number} of the memory is damaged: restore a backup."
                raise StoreError(told)
            found = tuple(json.loads(row[1]))
            self._held += len(found)
            if self._held > LABELS_IN_RAM:
                self._sets, self._held = {}, len(found)
            self._sets[number] = found
        return self._sets[number]

    def damaged_candidates(self) -> Iterable[int]:
        """Numbers of the sets whose digest does not fit."""
        rows = self._db.execute("SELECT id, digest, labels FROM candidates")
        return [number for number, digest, labels in rows if digest != _digest(labels)]

    def drop_unused_candidates(self) -> None:
        """Remove the sets that no example has any more."""
        used = "SELECT candidates FROM example WHERE candidates IS NOT NULL"
        self._db.execute(f"DELETE FROM candidates WHERE id NOT IN ({used})")
        self.reset()


def _digest(text: str) -> bytes:
    return hashlib.sha256(as_bytes(str(text))).digest()
