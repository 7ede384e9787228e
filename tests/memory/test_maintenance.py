"""Verify, back up, compact, rescue and count, while the memory is in use."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.memory.checks import assert_sound, filled, on_disk, record

from anytimecl.errors import StoreError
from anytimecl.memory import (
    RamMemory,
    Report,
    Row,
    Store,
    backup,
    compact,
    info,
    open_memory,
    rescue,
    salvage,
    verify,
)
from anytimecl.memory.database import FILE


def test_compact_gives_the_room_back(tmp_path: Path) -> None:
    rng = random.Random(0)
    with open_memory(tmp_path, create={}) as memory:
        sizes = [rng.randint(1, 9000) for _ in range(900)]
        ids = memory.append_many([("cat", record(n, size)) for n, size in enumerate(sizes, 1)])
        kept = sorted(rng.sample(ids, 300))
        memory.forget(sorted(set(ids) - set(kept)))
        before = info(memory)
        freed = compact(memory)
        after = info(memory)
        assert freed == before.disk_bytes - after.disk_bytes > 0
        assert before.free_bytes > 0
        assert after.free_bytes == 0
        assert after.disk_bytes < 1.1 * after.payload_bytes
        assert_sound(memory)
        memory.records.cache.clear()
        assert memory.read(kept) == [record(n, sizes[n - 1]) for n in kept]
        more = memory.append("dog", record(1, 5000))
        assert memory.read([more]) == [record(1, 5000)]
        assert compact(memory) == 0
        memory.forget([kept[7]])
        assert b"<%08d:" % kept[7] not in on_disk(tmp_path)  # no copy was left where it had been
        assert_sound(memory)


def test_compact_reads_a_hole_once_however_many_records_pass_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anytimecl.memory.compaction._RECORDS", 4)
    with RamMemory() as memory:
        ids = memory.append_many(("cat", record(n, 3000)) for n in range(1, 121))
        gone = {*ids[:60], *ids[80:90]}
        memory.forget(sorted(gone))
        whole, looked, is_blank = memory.records.stream.end, [], memory.records.stream.is_blank

        def watched(start: int, size: int) -> bool:
            looked.append(size)
            return is_blank(start, size)

        monkeypatch.setattr(memory.records.stream, "is_blank", watched)
        compact(memory)
        assert 0 < sum(looked) <= whole
        left = [n for n in ids if n not in gone]
        assert memory.read(left) == [record(n, 3000) for n in left]
        assert_sound(memory)


def test_compact_may_stop_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anytimecl.memory.compaction._RECORDS", 4)
    records = filled(tmp_path, 60, size=3000)
    with open_memory(tmp_path) as memory:
        memory.forget([1, 2, 3, 20, 40])
        left = [n for n in range(1, 61) if n not in (1, 2, 3, 20, 40)]
        writes = 0
        real = memory.records.stream.write

        def fails(start: int, data: bytes) -> None:
            nonlocal writes
            writes += 1
            if writes == 30:
                raise StoreError("a power cut")
            real(start, data)

        monkeypatch.setattr(memory.records.stream, "write", fails)
        with pytest.raises(StoreError, match="a power cut"):
            compact(memory)
        assert_sound(memory)
        added = memory.append("new", bytes(3000))
    with open_memory(tmp_path) as memory:
        assert_sound(memory)
        compact(memory)
        assert_sound(memory)
        assert memory.read([*left, added]) == [*(records[n - 1] for n in left), bytes(3000)]
        assert info(memory).free_bytes == 0


def test_a_memory_is_backed_up_and_verified_while_it_learns(tmp_path: Path) -> None:
    filled(tmp_path / "used", 300)
    done = threading.Event()
    with open_memory(tmp_path / "used") as memory:

        def learn_on() -> None:
            while not done.is_set():
                memory.append("more", record(0, 4400))

        learner = threading.Thread(target=learn_on)
        learner.start()
        try:
            for turn in range(3):
                backup(memory, tmp_path / f"copy {turn}")
                assert_sound(memory)
        finally:
            done.set()
            learner.join()
        total = len(memory)
    sizes = []
    for turn in range(3):
        with open_memory(tmp_path / f"copy {turn}") as copy:
            assert copy.meta == {"made": "here"}
            assert_sound(copy)
            assert [example for example, _ in copy.ids()] == list(range(1, len(copy) + 1))
            sizes.append(len(copy))
    assert 300 <= sizes[0] <= sizes[1] <= sizes[2] <= total


@pytest.mark.parametrize("copy", [backup, rescue])
def test_a_copy_never_replaces_a_memory(tmp_path: Path, copy: object) -> None:
    assert callable(copy)
    filled(tmp_path / "one", 3)
    filled(tmp_path / "two", 5)
    before = (tmp_path / "two" / FILE).read_bytes()
    with (
        open_memory(tmp_path / "one") as memory,
        pytest.raises(StoreError, match="already: choose another folder"),
    ):
        copy(memory, tmp_path / "two")
    assert (tmp_path / "two" / FILE).read_bytes() == before


@pytest.mark.parametrize("copy", [backup, rescue])
def test_a_copy_that_cannot_be_written_says_so(tmp_path: Path, copy: object) -> None:
    assert callable(copy)
    filled(tmp_path / "one", 3)
    (tmp_path / "file").touch()
    with (
        open_memory(tmp_path / "one") as memory,
        pytest.raises(StoreError, match=r"written: .*Not a directory"),
    ):
        copy(memory, tmp_path / "file" / "two")


def test_a_rescue_keeps_everything_of_a_sound_memory(tmp_path: Path) -> None:
    with open_memory(tmp_path / "old", create={"a": "b"}) as memory:
        for n in range(1, 8):
            row = Row(f"label {n % 2}", record(n, 100 * n), ["x", "y"], f"key {n}")
            memory.append_row(row._replace(content=-n, source=f"{n}.jpg", thumbnail=b"small"))
        memory.record_event("consolidate", {"epochs": 1})
        memory.forget([3])
        before = list(memory.events())
        examples = memory.rows(memory.all_ids())
        assert rescue(memory, tmp_path / "new") == (6, ())
    with open_memory(tmp_path / "new") as memory:
        assert memory.rows(memory.all_ids()) == examples
        *same, last = memory.events()
        assert same == before
        assert (last.kind, last.data) == ("rescue", {"left_out": []})
        assert memory.has_key("key 5") == 5
        assert memory.meta == {"a": "b"}
        assert_sound(memory)


def test_info_counts(tmp_path: Path) -> None:
    filled(tmp_path, 10, size=1000)
    with open_memory(tmp_path, read_only=True) as memory:
        found = info(memory)
        assert (found.examples, found.labels, found.events) == (10, 5, 10)
        assert (found.payload_bytes, found.free_bytes, found.lost_events) == (10_000, 0, 0)
        assert found.disk_bytes == (tmp_path / FILE).stat().st_size
        assert found.meta == {"made": "here"}
        assert found.folder == str(tmp_path)


def test_verify_finds_what_checksums_cannot(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    with open_memory(tmp_path) as memory:
        memory.forget([4])
        assert_sound(memory)
        memory.db.execute("UPDATE label SET examples = 9 WHERE id = 1")
        memory.db.execute("UPDATE hole SET start = start + 1")
        report = verify(memory)
        assert report.damaged == ()
        assert "Label 1 has 4 examples, not 9." in report.problems
        assert any("leave a gap" in problem for problem in report.problems)
        assert any("overlap" in problem for problem in report.problems)
        assert any("not blank" in problem for problem in report.problems)


def test_a_report_reads_well() -> None:
    assert str(Report(5)) == "5 examples checked, 0 damaged"
    told = str(Report(5, (1, 2), ("Event 3 is damaged.",), (7, 9)))
    assert told.splitlines() == [
        "5 examples checked, 2 damaged: 1, 2",
        "events 7 to 9 were stored, and are lost",
        "Event 3 is damaged.",
    ]


def test_verifying_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    with RamMemory() as memory:
        for number in range(3):
            memory.append("cat", bytes([number]))
        assert verify(memory, lambda done, total: told.append((done, total))).ok
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_rescue_that_is_interrupted_leaves_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "one", 5)
    taken = salvage._copy

    def interrupted(store: Store, new: Store, example: int, texts: Any) -> bool:
        if example == 4:
            raise KeyboardInterrupt
        return taken(store, new, example, texts)

    monkeypatch.setattr(salvage, "_AT_ONCE", 2)
    with open_memory(tmp_path / "one") as memory:
        with monkeypatch.context() as patched:
            patched.setattr(salvage, "_copy", interrupted)
            with pytest.raises(KeyboardInterrupt):
                rescue(memory, tmp_path / "two")
        assert not (tmp_path / "two").exists()
        assert rescue(memory, tmp_path / "two").examples == 5
