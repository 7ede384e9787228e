"""A memory beside a slow, obvious one, whatever is done to both."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.memory.checks import assert_sound

from anytimecl.memory import Event, Example, Row, backup, compact, open_memory

LABELS = st.sampled_from(["cat", "dog", "ä 猫", "x" * 200])
RECORDS = st.builds(lambda n, data: data * n, st.sampled_from([1, 97, 1500]), st.binary(max_size=9))
SETS = st.none() | st.lists(LABELS, max_size=3)
KEYS = st.none() | st.sampled_from(["a", "b", "c", "d"])
TIMES = st.none() | st.integers(0, 2**50)
DIGESTS = st.none() | st.sampled_from([0, 7, -(2**63), 2**63 - 1])
ROWS = st.builds(Row, LABELS, RECORDS, SETS, KEYS, TIMES, DIGESTS)


class Plain:
    """Lists and dictionaries, and nothing clever."""

    def __init__(self, cap: int | None) -> None:
        self.cap = cap
        self.last = 0
        self.examples: dict[int, Row] = {}
        self.events: list[Event] = []
        self.seen: list[str] = []  # labels that have examples, in order of first appearance

    def append(self, row: Row) -> int:
        for number, other in self.examples.items():
            if row.key is not None and other.key == row.key:
                return number
        self.last = number = self.last + 1
        self.examples[number] = row
        if row.label not in self.seen:
            self.seen.append(row.label)
        self.events.append(Event(number, "learn", {"example": number}))
        if self.cap is not None and len(self.examples) > self.cap:
            counts = self.labels()
            largest = max(counts, key=lambda label: counts[label])  # the first of several
            oldest = min(n for n, other in self.examples.items() if other.label == largest)
            self.remove(oldest)
            self.note("evict", {"example": oldest, "label": largest})
        return number

    def remove(self, number: int) -> None:
        label = self.examples.pop(number).label
        if label not in {row.label for row in self.examples.values()}:
            self.seen.remove(label)
        self.events = [e for e in self.events if e != Event(number, "learn", {"example": number})]

    def forget(self, ids: list[int]) -> int:
        gone = [number for number in dict.fromkeys(ids) if number in self.examples]
        for number in gone:
            self.remove(number)
        if gone:
            for event in self.events:
                if event.kind == "evict" and event.data.get("label") not in self.seen:
                    event.data.pop("label", None)
            self.note("forget", {"examples": gone})
        return len(gone)

    def note(self, kind: str, data: dict[str, object]) -> int:
        self.last += 1
        self.events.append(Event(self.last, kind, data))
        return self.last

    def labels(self) -> dict[str, int]:
        labels = [row.label for row in self.examples.values()]
        return {label: labels.count(label) for label in self.seen}


class Both(RuleBasedStateMachine):
    @initialize(cap=st.none() | st.integers(1, 6))
    def begin(self, cap: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.cap = cap
        self.copies = 0
        self.plain = Plain(cap)
        self.open(create={"a": "b"})

    def open(self, create: dict[str, str] | None = None) -> None:
        self.memory = open_memory(self.folder, create=create, cap=self.cap, cache_bytes=5000)

    @rule(row=ROWS)
    def append(self, row: Row) -> None:
        assert self.memory.append_row(row) == self.plain.append(row)

    @rule(rows=st.lists(ROWS, max_size=5))
    def append_many(self, rows: list[Row]) -> None:
        assert self.memory.append_many(rows) == [self.plain.append(row) for row in rows]

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from([*self.plain.examples, 999]), max_size=4)
        ids = data.draw(some)
        assert self.memory.forget(ids) == self.plain.forget(ids)

    @rule(epochs=st.integers())
    def note(self, epochs: int) -> None:
        data = {"epochs": epochs}
        assert self.memory.record_event("consolidate", data) == self.plain.note("consolidate", data)

    @rule()
    def compact(self) -> None:
        compact(self.memory)

    @rule()
    def open_again(self) -> None:
        self.memory.close()
        self.open()

    @precondition(lambda self: self.copies < 2)
    @rule()
    def go_on_from_a_backup(self) -> None:
        self.copies += 1
        other = self.folder / "copy"
        backup(self.memory, other)
        self.memory.close()
        shutil.move(self.folder, f"{self.folder}.old")
        shutil.move(f"{self.folder}.old/copy", self.folder)
        shutil.rmtree(f"{self.folder}.old")
        self.open()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "memory"):
            return
        examples = self.plain.examples
        assert list(self.memory.ids()) == [(n, row.label) for n, row in examples.items()]
        assert self.memory.read(list(examples)) == [row.record for row in examples.values()]
        for n, row in examples.items():
            candidates = None if row.candidates is None else tuple(row.candidates)
            assert self.memory.example(n) == Example(n, row.label, row.record, candidates, n)
            if row.key is not None:
                assert self.memory.has_key(row.key) == n
        for digest in (0, 7, -(2**63), 2**63 - 1, 1):
            same = [(n, row.label) for n, row in examples.items() if row.content == digest]
            assert self.memory.find_content(digest) == (same[-1] if same else None)
        told = {n: row.content for n, row in self.memory.rows(list(examples))}
        assert told == {n: row.content for n, row in examples.items()}
        assert list(self.memory.labels().items()) == list(self.plain.labels().items())
        assert list(self.memory.events()) == self.plain.events
        assert len(self.memory) == len(examples)
        assert_sound(self.memory)

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()
            shutil.rmtree(self.folder)


Both.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestBoth = Both.TestCase
