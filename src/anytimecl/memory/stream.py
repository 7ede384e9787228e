"""A byte stream of records, stored in database rows that fill their pages exactly.

A row for each record would waste up to a page of 4 KB: with records of 2.5 KB, 64 % more disk than
payload. So records are concatenated to a stream, which is cut into extents of a fixed size that
SQLite stores without a gap: one eighth of a leaf page and one whole overflow page. A record may
span extents. Freed ranges are zeroed and become holes, for the next record that fits.

Holes have no checksum, so damage could put one over a record: only a blank one is believed.
"""

from __future__ import annotations

import sqlite3

from anytimecl.errors import StoreError
from anytimecl.memory.database import is_damage
from anytimecl.memory.schema import PAGE

# See "B-tree Cell Format" in SQLite's file format: a long payload keeps `least` bytes in the leaf
# if the rest fills its overflow pages, and eight such cells fill a leaf. The row's own header
# takes four bytes. More overflow pages an extent would save little disk and cost time to read.
_LEAST = (PAGE - 12) * 32 // 255 - 23
LARGEST = 1 << 28  # bytes of a record, so that a damaged size cannot fill the RAM
EXTENT = _LEAST + (PAGE - 4) - 4


class Stream:
    """Allocates, writes and reads ranges, within the caller's transaction.

    `end` and `extents` mirror the tables: call `load` after a rollback.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.end = 0  # end of the last record or hole
        self.extents = 0

    def load(self) -> None:
        """Read `end` and `extents` from the tables."""
        last = "SELECT coalesce(max(id) + 1, 0) FROM extent"
        self.extents = self._db.execute(last).fetchone()[0]
        used = "SELECT max(start + size) FROM {}"
        try:
            ends = [self._db.execute(used.format(table)).fetchone()[0] for table in _USERS]
            self.end = min(max(end or 0 for end in ends), self.extents * EXTENT)
        except sqlite3.DatabaseError:
            # Damage hides the end of the used range: start at a new extent.
            self.end = self.extents * EXTENT

    def put(self, data: bytes) -> int:
        """Store the bytes; returns their offset."""
        if not data:
            return 0
        if len(data) > LARGEST:
            raise StoreError(f"A record has {len(data)} bytes, and {LARGEST} is the most.")
        start = self._hole(len(data))
        if start is not None and self._written(start, data):
            return start
        start = self.end
        if not self._written(start, data):
            start = self.extents * EXTENT  # the last extent is damaged: start at a new one
            self.write(start, data)
        self.end = start + len(data)
        return start

    def get(self, start: int, size: int) -> bytes:
        """The bytes of a range; fewer or others if it is damaged."""
        if size > LARGEST:
            return b""
        first, offset = divmod(start, EXTENT)
        last = (start + size - 1) // EXTENT
        wanted = "SELECT data FROM extent WHERE id BETWEEN ? AND ? ORDER BY id"
        parts = [row[0] for row in self._db.execute(wanted, (first, last))]
        if not all(isinstance(part, bytes) and len(part) == EXTENT for part in parts):
            return b""
        return b"".join(parts)[offset : offset + size]

    def is_blank(self, start: int, size: int) -> bool:
        """Whether a range is not empty, inside the extents and zeroed."""
        rows = "SELECT id, data FROM extent WHERE id BETWEEN ? AND ?"
        places = start // EXTENT, (start + size - 1) // EXTENT
        found = 0
        for extent, data in self._db.execute(rows, places):
            if not isinstance(data, bytes):  # a flipped bit made it a text or a number
                return False
            at = extent * EXTENT
            part = data[max(0, start - at) : start + size - at]
            if part.strip(b"\0"):
                return False
            found += len(part)
        return found == size > 0

    def free(self, start: int, size: int) -> None:
        """Zero a range and make it a hole, merged with adjacent holes."""
        if not size or not self._written(start, bytes(size)):
            return
        self.make_hole(start, size)

    def make_hole(self, start: int, size: int) -> None:
        """Add a zeroed range to the holes, merged with adjacent ones."""
        before = "SELECT start, size FROM hole WHERE start < ? ORDER BY start DESC LIMIT 1"
        previous = self._db.execute(before, (start,)).fetchone()
        if previous and previous[0] + previous[1] == start:
            start, size = previous[0], previous[1] + size
            self._fill(start)
        after = "SELECT size FROM hole WHERE start = ?"
        following = self._db.execute(after, (start + size,)).fetchone()
        if following:
            self._fill(start + size)
            size += following[0]
        if start + size == self.end and self.is_blank(start, size):
            self.end = start
        else:
            self._db.execute("INSERT INTO hole VALUES (?, ?)", (start, size))

    def write(self, start: int, data: bytes) -> None:
        """Replace the bytes of a range."""
        done = 0
        while done < len(data):
            extent, offset = divmod(start + done, EXTENT)
            part = data[done : done + EXTENT - offset]
            if extent < self.extents:
                with self._db.blobopen("extent", "data", extent) as blob:
                    blob.seek(offset)
                    blob.write(part)
            else:
                whole = bytes(offset) + part + bytes(EXTENT - offset - len(part))
                self._db.execute("INSERT INTO extent VALUES (?, ?)", (extent, whole))
                self.extents = extent + 1
            done += len(part)

    def _written(self, start: int, data: bytes) -> bool:
        """Write a range; returns False on a damaged page or extent, which is not used again."""
        try:
            self.write(start, data)
        except ValueError:  # an extent of another size
            return False
        except sqlite3.DatabaseError as error:
            if not is_damage(error) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise  # SQLITE_ERROR: there is no such extent
            return False
        return True

    def _hole(self, size: int) -> int | None:
        """Allocate from the smallest hole that is large enough."""
        best = f"SELECT start, size FROM hole WHERE size BETWEEN ? AND {self.extents * EXTENT} "
        best += "ORDER BY size, start LIMIT 1"
        while hole := self._db.execute(best, (size,)).fetchone():
            start, room = hole
            self._fill(start)
            if not self.is_blank(start, size):
                continue
            if room > size:
                self._db.execute("INSERT INTO hole VALUES (?, ?)", (start + size, room - size))
            return int(start)
        return None

    def _fill(self, start: int) -> None:
        self._db.execute("DELETE FROM hole WHERE start = ?", (start,))


_USERS = ("example", "hole")
