"""What a memory does when nothing goes wrong."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.memory.checks import assert_sound, on_disk, record

from anytimecl.errors import StoreError
from anytimecl.memory import Event, Example, RamMemory, Row, Store, open_memory, vocabulary


@pytest.fixture(params=["file", "ram"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty memory of either kind."""
    if request.param == "ram":
        made: Store = RamMemory({"codec": "none"})
    else:
        made = open_memory(tmp_path / "memory", create={"codec": "none"})
    with made:
        yield made


def test_an_example_comes_back_as_it_was_given(memory: Store) -> None:
    first = memory.append("cat", b"one")
    second = memory.append("dog", b"two", ["dog", "cat"])
    assert memory.example(first) == Example(first, "cat", b"one", None, first)
    assert memory.example(second) == Example(second, "dog", b"two", ("dog", "cat"), second)
    assert memory.read([second, first, second]) == [b"two", b"one", b"two"]
    assert [each.candidates for each in memory.stored([first, second])] == [None, ("dog", "cat")]
    assert list(memory.ids()) == [(first, "cat"), (second, "dog")]
    assert len(memory) == 2
    assert_sound(memory)


@pytest.mark.parametrize("size", [0, 1, 489, 4095, 4576, 4577, 4578, 9155, 100_000])
def test_any_size_is_stored(memory: Store, size: int) -> None:
    data = record(1, size)
    ids = memory.append_many([("cat", data)] * 3)
    memory.records.cache.clear()
    assert memory.read(ids) == [data] * 3
    assert_sound(memory)


def test_the_newest_example_with_a_digest_is_found_until_it_is_forgotten(memory: Store) -> None:
    assert memory.find_content(5) is None
    first = memory.append("cat", b"one", content=5)
    second = memory.append("dog", b"one", content=5)
    memory.append("dog", b"two", content=-6)
    assert memory.find_content(5) == (second, "dog")
    memory.forget([second])
    assert memory.find_content(5) == (first, "cat")
    memory.forget([first])
    assert memory.find_content(5) is None
    assert memory.find_content(-6) == (3, "dog")
    assert_sound(memory)


def test_a_forgotten_digest_is_not_on_the_disk(tmp_path: Path) -> None:
    digest = 0x1234567890ABCDEF
    with open_memory(tmp_path, create={}) as memory:
        for number in range(20):
            memory.append("cat", b"one", content=digest if number == 9 else number)
        memory.forget([10])
    assert digest.to_bytes(8, "big") not in on_disk(tmp_path)
    with open_memory(tmp_path) as memory:
        memory.append("cat", b"one", content=digest)
    assert digest.to_bytes(8, "big") in on_disk(tmp_path)  # or the test would see nothing


@pytest.mark.parametrize("where", ["file", "ram"])
def test_what_had_to_make_room_is_told_with_its_record(where: str, tmp_path: Path) -> None:
    made = RamMemory({}, cap=2) if where == "ram" else open_memory(tmp_path, create={}, cap=2)
    with made as memory:
        for number in range(2):
            memory.append("cat", b"%d" % number, content=number)
            assert memory.evicted == {}
        memory.append("cat", b"2", content=2)
        assert memory.evicted == {1: b"0"}
        assert memory.find_content(0) is None
        memory.append("dog", b"3")
        assert memory.evicted == {2: b"1"}


def test_labels_come_in_order_of_first_appearance(memory: Store) -> None:
    for label in ["b", "a", "b", "c", "ä", "猫"]:
        memory.append(label, b"")
    assert list(memory.labels().items()) == [("b", 2), ("a", 1), ("c", 1), ("ä", 1), ("猫", 1)]
    assert [label for _, label in memory.ids("b")] == ["b", "b"]
    assert list(memory.ids("unknown")) == []


def test_a_repeated_key_stores_nothing(memory: Store) -> None:
    assert memory.has_key("upload 7") is None
    first = memory.append("cat", b"one", key="upload 7")
    assert memory.append("dog", b"two", key="upload 7") == first
    assert memory.has_key("upload 7") == first
    assert memory.labels() == {"cat": 1}
    assert len(list(memory.events())) == 1
    both = memory.append_many([Row("cat", b"x", key="k"), Row("cat", b"y", key="k")])
    assert both[0] == both[1]


def test_a_batch_is_stored_whole_or_not_at_all(memory: Store) -> None:
    kept = memory.append("cat", b"one")
    with pytest.raises(TypeError):
        memory.append_many([Row("cat", b"two"), Row("dog", None)])  # type: ignore[arg-type]
    assert list(memory.ids()) == [(kept, "cat")]
    assert memory.labels() == {"cat": 1}
    assert memory.append("cat", b"three") == kept + 1
    assert_sound(memory)


class Interrupted:
    """A connection in which Ctrl-C comes while it commits."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def execute(self, statement: str, *given: Any) -> Any:
        found = self._db.execute(statement, *given)
        if statement == "COMMIT":
            raise KeyboardInterrupt
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def test_what_is_interrupted_as_it_commits_is_there(memory: Store) -> None:
    memory.append("cat", b"one")
    whole: Any = memory.db
    memory._db = Interrupted(whole)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        memory.append("dog", b"another", key="2")
    memory._db = whole
    assert memory.has_key("2") == memory.last
    memory.append("fox", b"three")
    assert memory.read(memory.all_ids()) == [b"one", b"another", b"three"]
    assert_sound(memory)


def test_the_journal_tells_everything_in_order(memory: Store) -> None:
    first = memory.append("cat", b"one")
    noted = memory.record_event("consolidate", {"epochs": 2, "labels": ["ä"]})
    second = memory.append("dog", b"two")
    assert memory.forget([first]) == 1
    assert list(memory.events()) == [
        Event(noted, "consolidate", {"epochs": 2, "labels": ["ä"]}),
        Event(second, "learn", {"example": second}),
        Event(second + 1, "forget", {"examples": [first]}),
    ]
    assert [event.number for event in memory.events(after=noted)] == [second, second + 1]


def test_iterators_go_on_while_others_write(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anytimecl.memory.store._AT_ONCE", 2)
    ids = memory.append_many([("cat", b"x")] * 5)
    seen = []
    for example, _ in memory.ids():
        seen.append(example)
        if len(seen) == 1:
            ids.append(memory.append("new", b"y"))
            memory.forget([ids[3]])
    assert seen == [example for example in ids if example != ids[3]]
    numbers = [event.number for event in memory.events()]
    assert numbers == sorted(numbers)
    assert len(numbers) == 6


def test_candidates_are_stored_once(memory: Store) -> None:
    many = [f"label {n}" for n in range(1000)]
    ids = [memory.append("cat", b"x", candidates) for candidates in (many, ["a"], many, ["a"])]
    stored = memory.db.execute("SELECT count(*) FROM candidates").fetchone()[0]
    assert stored == 2
    assert [each.candidates for each in memory.stored(ids)] == [tuple(many), ("a",)] * 2
    memory.forget([ids[1], ids[3]])
    stored = memory.db.execute("SELECT count(*) FROM candidates").fetchone()[0]
    assert stored == 1
    assert memory.example(memory.append("cat", b"x", ["a"])).candidates == ("a",)


def test_a_missing_example_is_named(memory: Store) -> None:
    memory.append("cat", b"one")
    with pytest.raises(StoreError, match="no example 7"):
        memory.read([1, 7])
    with pytest.raises(StoreError, match="no example 7"):
        memory.example(7)
    assert memory.forget([7]) == 0
    assert [event.kind for event in memory.events()] == ["learn"]


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={"codec": "none"}) as memory:
        ids = [memory.append(f"label {n % 3}", record(n, 5000), ["x"], f"{n}") for n in range(20)]
        memory.forget(ids[3:6])
        noted = memory.record_event("consolidate", {})
        before = [memory.example(e) for e, _ in memory.ids()], memory.labels()
    with open_memory(tmp_path, create={"ignored": "since there is one"}) as memory:
        assert dict(memory.meta) == {"codec": "none"}
        assert ([memory.example(e) for e, _ in memory.ids()], memory.labels()) == before
        assert memory.append("new", b"") == noted + 1
        assert_sound(memory)


def test_forgotten_bytes_are_gone_from_every_file(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", record(2, 3000))
        secret = ("a secret label", record(1, 20_000), ["a secret set"], "a secret key")
        example = memory.append(*secret)
        kept = memory.append("cat", record(3, 3000))
        found = on_disk(tmp_path)
        assert b"<00000001:00000500>" in found
        assert b"a secret" in found
        assert memory.forget([example]) == 1
        found = on_disk(tmp_path)
        assert b"<00000001:" not in found
        assert b"a secret" not in found
        assert b"<00000003:" in found
        assert memory.read([kept]) == [record(3, 3000)]
        assert_sound(memory)


def test_the_room_of_the_forgotten_is_used_again(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        ids = memory.append_many([("cat", record(n, 4400)) for n in range(200)])
        memory.truncate_log()
        size = (tmp_path / "memory.sqlite3").stat().st_size
        for turn in range(5):
            memory.forget(ids[turn::5])
            memory.append_many([("dog", record(n, 4400)) for n in range(40)])
        memory.truncate_log()
        assert (tmp_path / "memory.sqlite3").stat().st_size <= size + 4 * 4096
        assert_sound(memory)


def test_a_cap_keeps_the_classes_balanced() -> None:
    with RamMemory(cap=6) as memory:
        for n in range(30):
            memory.append("often", bytes([n]))
        rare = [memory.append("rare", b"r"), memory.append("rarer", b"s")]
        assert memory.labels() == {"often": 4, "rare": 1, "rarer": 1}
        kept = [example for example, label in memory.ids() if label == "often"]
        assert memory.read(kept) == [bytes([n]) for n in range(26, 30)]
        evicted = [event for event in memory.events() if event.kind == "evict"]
        assert len(evicted) == 26
        assert evicted[0].data == {"example": 1, "label": "often"}
        for n in range(20):
            memory.append(f"new {n}", b"n")
        assert len(memory) == 6
        assert rare[0] not in dict(memory.ids())
        assert_sound(memory)


def test_a_new_example_is_never_the_one_evicted() -> None:
    with RamMemory(cap=1) as memory:
        for label in ["b", "a", "a", "b"]:
            example = memory.append(label, b"")
            assert list(memory.ids()) == [(example, label)]


def test_a_forgotten_label_leaves_the_journal_too() -> None:
    with RamMemory(cap=2) as memory:
        for n in range(4):
            last = memory.append("secret", bytes([n]))
        memory.append("cat", b"c")
        memory.forget([last])
        assert "secret" not in str(list(memory.events()))
        assert_sound(memory)


def test_a_small_cache_is_still_right(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}, cache_bytes=10_000) as memory:
        ids = memory.append_many([("cat", record(n, 3000)) for n in range(10)])
        for _ in range(3):
            assert memory.read(ids) == [record(n, 3000) for n in range(10)]


def test_threads_may_share_a_memory(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    done = threading.Event()

    def read_on() -> None:
        try:
            while not done.is_set():
                ids = [example for example, _ in memory.ids()]
                records = memory.read(ids)
                assert [int(data[1:9]) for data in records] == ids
                assert sum(memory.labels().values()) >= len(ids)
        except BaseException as error:
            failed.append(error)

    with open_memory(tmp_path, create={}, cache_bytes=50_000) as memory:
        readers = [threading.Thread(target=read_on) for _ in range(3)]
        for reader in readers:
            reader.start()
        for n in range(1, 201):
            memory.append(f"label {n % 7}", record(n, 2500))
        done.set()
        for reader in readers:
            reader.join()
        assert not failed
        assert_sound(memory)


def test_a_closed_memory_says_so(memory: Store) -> None:
    memory.close()
    memory.close()
    with pytest.raises(StoreError, match="closed"):
        len(memory)
    with pytest.raises(StoreError, match="closed"):
        memory.append("cat", b"")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_may_not_use_it(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", b"one")
        child = os.fork()
        if not child:
            try:
                memory.close()
                len(memory)
            except StoreError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        memory.append("cat", b"two")
    with open_memory(tmp_path) as memory:
        assert len(memory) == 2


@pytest.mark.parametrize("cap", [0, -1, "5", 2.5])
def test_a_cap_is_a_whole_number_from_one(cap: Any) -> None:
    with pytest.raises(StoreError, match="whole number from 1"):
        RamMemory(cap=cap)


def test_sets_of_candidates_do_not_fill_the_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LABELS_IN_RAM", 10)
    with RamMemory() as memory:
        sets = [tuple(f"label {n} {m}" for m in range(3)) for n in range(8)]
        ids = [memory.append(some[0], b"record", some) for some in sets]
        for _ in range(2):
            assert [each.candidates for each in memory.stored(ids)] == sets
            assert sum(map(len, memory.vocabulary._sets.values())) <= 10
