"""What a memory answers."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator, Sequence

from anytimecl.errors import StoreError
from anytimecl.memory.about import sound
from anytimecl.memory.acts import LabelHistory, history, ids_at
from anytimecl.memory.contract import Event, Example, Row, Stored, StoreWarning
from anytimecl.memory.database import is_damage
from anytimecl.memory.keys import FileKey, RequestKey, Used
from anytimecl.memory.records import Place
from anytimecl.memory.transactions import Transactions

_AT_ONCE = 10_000  # rows that an iterator takes while others wait


class Queries(Transactions):
    """The part of a store that reads."""

    def has_key(self, key: str) -> int | None:
        with self.reading() as db:
            row = db.execute("SELECT id FROM example WHERE key = ?", (key,)).fetchone()
            return row and int(row[0])

    def taught_by(self, key: str) -> int | None:
        """The id of the example learned with a plain key, even if it has another key now."""
        with self.reading():
            known = self.has_key(key)
            if known is not None or isinstance(key, RequestKey | FileKey):
                return known
            former = self.keys.former(key)
            place = None if former is None else self.records.find(former)
            return former if place is not None and place.label else None

    def came_with(self, key: str, label: str) -> bool:
        with self.reading():
            return self.keys.came_with(key, label)

    def find_content(self, digest: int) -> tuple[int, str] | None:
        """The newest example of an image with these tokens, and its label."""
        found = self.copies(digest)
        return found[-1] if found else None

    def copies(self, digest: int | None) -> list[tuple[int, str]]:
        """Every example of an image with these tokens, and its label; the newest comes last."""
        if digest is None:
            return []
        with self.reading():
            wanted = "SELECT e.id, e.label, c.crc FROM content c "
            wanted += "JOIN example e ON e.id = c.example "
            wanted += "WHERE c.digest = ? AND e.label > 0 ORDER BY e.id"
            found = self.db.execute(wanted, (digest,)).fetchall()
            good = [(i, label) for i, label, crc in found if sound(i, digest, crc)]
            return [(example, self.vocabulary.text(label)) for example, label in good]

    def used_key(self, key: str) -> Used | None:
        with self.reading():
            return self.keys.find(key)

    def read(self, ids: Sequence[int]) -> list[bytes]:
        with self.reading():
            found = self.records.get_many(ids)
            return [(found[e] if e in found else self.records.get(e)).record for e in ids]

    def stored(self, ids: Sequence[int]) -> list[Stored]:
        good = []
        with self.reading():
            found = self.records.get_many(ids)
            for example in ids:
                try:
                    entry = found[example] if example in found else self.records.get(example)
                    chosen = entry.candidates
                    given = None if chosen is None else self.vocabulary.candidates(chosen)
                    good.append(Stored(example, entry.record, given))
                except StoreError as error:
                    warnings.warn(f"Left out: {error}", StoreWarning, stacklevel=2)
        return good

    def example(self, example: int) -> Example:
        with self.reading():
            record = self.records.get(example).record
            place = self.labelled(example)
            label = self.vocabulary.text(place.label)
            candidates = self.vocabulary.candidates(place.candidates)
            return Example(example, label, record, candidates, example)

    def labelled(self, example: int) -> Place:
        """The place of an example; StoreError if it was undone."""
        place = self.records.place(example)
        if not place.label:
            raise StoreError(f"The memory has no example {example}: it was taken back.")
        return place

    def label(self, example: int) -> str | None:
        """The label of an example; None if it was undone."""
        with self.reading():
            place = self.records.place(example)
            return self.vocabulary.text(place.label) if place.label else None

    def digest(self, example: int) -> int | None:
        """The digest of an example's tokens, if known."""
        with self.reading():
            return self.about.digest(example)

    def told_of(self, example: int) -> tuple[str | None, str | None]:
        """The label of an example, and the name of its source."""
        with self.reading():
            return self.label(example), self.about.source(example)

    def history(self, after: int = 0) -> LabelHistory:
        return history(self, after)

    def ids_at(self, number: int) -> Iterator[tuple[int, str]]:
        return ids_at(self, number)

    def rows(self, ids: Sequence[int]) -> list[tuple[int, Row]]:
        """Examples as they would be stored again; the damaged are left out as `stored` does."""
        found = []
        with self.reading():
            for example, record, candidates in self.stored(ids):
                try:
                    place = self.labelled(example)
                    label = self.vocabulary.text(place.label)
                except StoreError as error:
                    told = f"Left out: example {example}. {error}"
                    warnings.warn(told, StoreWarning, stacklevel=2)
                else:
                    row = Row(label, record, candidates, place.key, place.time)
                    found.append((example, self.about.row(example, row)))
        return found

    def thumbnail(self, example: int) -> bytes | None:
        """The thumbnail of an example, if there is one."""
        with self.reading():
            return self.about.thumbnail(example)

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        texts: dict[int, str] = {}
        page = [(0, 0)]
        while page:
            with self.reading():
                page = self.page(page[-1][0], label)
                numbers = {number for _, number in page}
                if not numbers <= texts.keys():
                    texts = self.vocabulary.texts()
            for number in numbers - texts.keys():
                told = f"Left out: examples of label {number}, whose text is damaged."
                warnings.warn(told, StoreWarning, stacklevel=2)
            yield from [(example, texts[number]) for example, number in page if number in texts]

    def labels(self) -> dict[str, int]:
        with self.reading():
            return self.vocabulary.counts()

    def events(self, after: int = 0) -> Iterator[Event]:
        page = [Event(after, "", {})]
        while page:
            with self.reading():
                page = self.journal.read(page[-1].number, _AT_ONCE)
            yield from page

    def __len__(self) -> int:
        with self.reading():
            return self.vocabulary.total()

    def page(
        self, after: int, label: str | None = None, *, withdrawn: bool = False
    ) -> list[tuple[int, int]]:
        """The next (example, number of its label) in order of arrival.

        The number is 0 for undone examples, which are included only if `withdrawn`.
        """
        only = "" if withdrawn else "AND +label != 0"
        if label is not None:
            only = "AND label = (SELECT id FROM label WHERE text = :label)"
        chosen = {"after": after, "label": label}
        with self.reading() as db:
            try:
                page = f"SELECT id, label FROM example WHERE id > :after {only} ORDER BY id LIMIT "
                return db.execute(page + str(_AT_ONCE), chosen).fetchall()
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
            # The table is damaged, so take all from the index by label, which has the same.
            whole = "SELECT id, label FROM example INDEXED BY example_label "
            whole += f"WHERE label > 0 AND id > :after {only}"
            return sorted(db.execute(whole, chosen).fetchall())

    def all_ids(self) -> list[int]:
        """Every example, even those that are damaged."""
        found: list[int] = []
        while page := self.page(found[-1] if found else 0):
            found += [example for example, _ in page]
        return found
