"""Label texts and candidate sets, each stored once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable

from anytimecl.errors import StoreError
from anytimecl.memory.checks import as_bytes, text_checksum
from anytimecl.memory.database import is_damage

LABELS_IN_RAM = 1 << 20  # in cached candidate sets; beyond that the cache is cleared


class Vocabulary:
    """Texts by number, within the caller's transaction; call `reset` after a rollback.

    Numbers are never reused.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sets: dict[int, tuple[str, ...]] = {}  # cache of sets that were read
        self._held = 0  # labels in it
        self._last: tuple[tuple[str, ...], int] | None = None  # last set written, with its number

    def reset(self) -> None:
        """Clear caches."""
        self._sets.clear()
        self._held, self._last = 0, None

    def add_example(self, text: str) -> int:
        """Increment a label's count, adding the label if new; returns its number."""
        known = self.number(text)
        if known is not None:
            more = "UPDATE label SET examples = examples + 1 WHERE id = ?"
            self._db.execute(more, (known,))
            return known
        new = "INSERT INTO label (text, examples) VALUES (?, 1)"
        number = self._db.execute(new, (text,)).lastrowid
        assert number is not None
        crc = text_checksum(number, text)
        self._db.execute("UPDATE label SET crc = ? WHERE id = ?", (crc, number))
        return number

    def rename(self, number: int, text: str) -> None:
        """Change a label's text, which must not be in use."""
        change = "UPDATE label SET text = ?, crc = ? WHERE id = ?"
        self._db.execute(change, (text, text_checksum(number, text), number))

    def number(self, text: str) -> int | None:
        """The number of a label, or None."""
        known = self._db.execute("SELECT id FROM label WHERE text = ?", (text,)).fetchone()
        return known and int(known[0])

    def drop_example(self, number: int) -> None:
        """Decrement a label's count; the label is deleted with its last example."""
        less = "UPDATE label SET examples = examples - 1 WHERE id = ?"
        self._db.execute(less, (number,))
        # The count has no checksum: a damaged one must not take the text from other examples.
        unused = "examples <= 0 AND NOT EXISTS (SELECT 1 FROM example WHERE label = ?)"
        self._db.execute(f"DELETE FROM label WHERE id = ? AND {unused}", (number, number))

    def texts(self) -> dict[int, str]:
        """Undamaged labels by number."""
        try:
            rows = self._db.execute("SELECT id, text, crc FROM label").fetchall()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            # The index over the texts is a second copy.
            whole = "SELECT id, text FROM label INDEXED BY sqlite_autoindex_label_1"
            return dict(self._db.execute(f"{whole} WHERE text > ''").fetchall())
        return {id_: text for id_, text, crc in rows if crc == text_checksum(id_, text)}

    def text(self, number: int) -> str:
        """The text of a label."""
        wanted = "SELECT text, crc FROM label WHERE id = ?"
        row = self._db.execute(wanted, (number,)).fetchone()
        if row is None or row[1] != text_checksum(number, row[0]):
            raise StoreError(f"Label {number} of the memory is damaged: restore a backup.")
        return str(row[0])

    def counts(self) -> dict[str, int]:
        """Number of examples of each label, in order of first appearance."""
        rows = self._db.execute("SELECT id, text, examples, crc FROM label ORDER BY id")
        return {text: count for id_, text, count, crc in rows if crc == text_checksum(id_, text)}

    def largest(self) -> int:
        """The label with the most examples; of several, the oldest."""
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
        """A candidate set, as it was given."""
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
        """Numbers of damaged candidate sets."""
        rows = self._db.execute("SELECT id, digest, labels FROM candidates")
        return [number for number, digest, labels in rows if digest != _digest(labels)]

    def drop_unused_candidates(self) -> None:
        """Delete candidate sets that no example uses."""
        used = "SELECT candidates FROM example WHERE candidates IS NOT NULL"
        self._db.execute(f"DELETE FROM candidates WHERE id NOT IN ({used})")
        self.reset()


def _digest(text: str) -> bytes:
    return hashlib.sha256(as_bytes(str(text))).digest()
