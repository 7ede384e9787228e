"""Damaged files: found, named, and the rest goes on; never garbage."""

from __future__ import annotations

import random
import shutil
import sqlite3
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory.checks import (
    PAGE,
    assert_sound,
    filled,
    flip,
    on_disk,
    overwrite,
    page_of,
    record,
)

from anytimecl.errors import StoreError
from anytimecl.memory import (
    Row,
    Store,
    StoreWarning,
    backup,
    compact,
    open_memory,
    rescue,
    verify,
)
from anytimecl.memory.checks import text_checksum
from anytimecl.memory.database import FILE
from anytimecl.memory.stream import EXTENT


def test_a_flipped_bit_in_a_record_is_found_named_and_left_out(tmp_path: Path) -> None:
    records = filled(tmp_path, 50)
    flip(tmp_path, (tmp_path / FILE).read_bytes().find(b"<00000017:00000100>") + 5)
    with open_memory(tmp_path) as memory:
        with pytest.raises(StoreError, match="Example 17 of the memory is damaged"):
            memory.read([16, 17, 18])
        with pytest.warns(StoreWarning, match="Left out: Example 17 "):
            good = [each[:2] for each in memory.stored(range(1, 51))]
        assert good == [(n, data) for n, data in enumerate(records, 1) if n != 17]
        report = verify(memory)
        assert report.damaged == (17,)
        assert not report.ok
        assert "1 damaged: 17" in str(report)
        assert memory.read([memory.append("new", b"new")]) == [b"new"]
        assert memory.forget([17]) == 1
        assert_sound(memory)


def test_a_flipped_bit_in_a_label_number_is_found(tmp_path: Path) -> None:
    filled(tmp_path, 50)
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("UPDATE example SET label = 2 WHERE id = 20")
    db.commit()
    db.close()
    with open_memory(tmp_path) as memory:
        assert dict(memory.ids())[20] == "label 2"  # the index cannot know
        with pytest.raises(StoreError, match="Example 20 "):  # but the record does
            memory.read([20])
        assert verify(memory).damaged == (20,)


def test_a_damaged_label_text_is_found(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    page = page_of(tmp_path, b"label 3")
    content = (tmp_path / FILE).read_bytes()
    flip(tmp_path, content.find(b"label 3", page * PAGE) + 3)
    with open_memory(tmp_path) as memory:
        threes = {n for n in range(1, 21) if n % 5 == 3}
        with pytest.warns(StoreWarning, match="examples of label"):
            assert {example for example, _ in memory.ids()} == set(range(1, 21)) - threes
        with pytest.raises(StoreError, match="damaged"):
            memory.example(3)
        assert set(verify(memory).damaged) >= threes


@pytest.mark.parametrize(
    ("table", "change"),
    [("content", "digest = 8"), ("source", "name = 'b.jpg'"), ("thumbnail", "data = x'00'")],
)
def test_what_is_known_besides_is_left_out_where_it_is_damaged(
    tmp_path: Path, table: str, change: str
) -> None:
    row = Row("cat", b"a cat", content=7, source="a.jpg", thumbnail=b"a picture")
    with open_memory(tmp_path, create={}) as memory:
        memory.append_row(row)
    db = sqlite3.connect(tmp_path / FILE)
    db.execute(f"UPDATE {table} SET {change}")
    db.commit()
    db.close()
    with open_memory(tmp_path) as memory:
        with pytest.warns(StoreWarning, match="of example 1 is damaged"):
            [(_, found)] = memory.rows([1])
        assert getattr(found, table) is None
        assert found._replace(**{table: getattr(row, table)}, time=None) == row
        assert memory.find_content(8) is None
        assert "of example 1 is damaged" in str(verify(memory))


def test_the_labels_survive_the_loss_of_their_page(tmp_path: Path) -> None:
    records = filled(tmp_path, 20)
    db = sqlite3.connect(tmp_path / FILE)
    root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'label'").fetchone()[0]
    db.close()
    overwrite(tmp_path, (root - 1) * PAGE, b"\xa5" * PAGE)
    with open_memory(tmp_path) as memory:
        assert dict(memory.ids()) == {n: f"label {n % 5}" for n in range(1, 21)}
        assert memory.read(range(1, 21)) == records
        with pytest.raises(StoreError, match="damaged"):
            memory.append("new", b"")
        assert not verify(memory).ok
        assert rescue(memory, tmp_path / "rescued") == (20, ())
    with open_memory(tmp_path / "rescued") as memory:
        assert dict(memory.ids()) == {n: f"label {n % 5}" for n in range(1, 21)}
        assert_sound(memory)


def test_a_damaged_page_of_the_index_leaves_the_rest_usable(tmp_path: Path) -> None:
    records = filled(tmp_path, 2000, size=100)
    db = sqlite3.connect(tmp_path / FILE)
    leaves = "SELECT pageno FROM dbstat WHERE name = 'example' AND pagetype = 'leaf' ORDER BY path"
    try:
        page = db.execute(leaves).fetchall()[3][0]
    except sqlite3.OperationalError:
        pytest.skip("this SQLite does not tell which page belongs to what")
    finally:
        db.close()
    overwrite(tmp_path, (page - 1) * PAGE, b"\xa5" * PAGE)
    with open_memory(tmp_path) as memory:
        ids = list(memory.ids())
        assert [example for example, _ in ids] == list(range(1, 2001))
        with pytest.warns(StoreWarning, match="damaged"):
            good = {each.id: each.record for each in memory.stored([example for example, _ in ids])}
        assert 1500 < len(good) < 2000
        assert all(good[example] == records[example - 1] for example in good)
        assert set(verify(memory).damaged) == set(range(1, 2001)) - good.keys()
        saved = rescue(memory, tmp_path / "rescued")
        assert saved.examples == len(good)
        assert set(saved.left_out) == set(range(1, 2001)) - good.keys()
    with open_memory(tmp_path / "rescued") as memory:
        assert dict(memory.ids()) == {e: label for e, label in ids if e in good}
        assert memory.read(list(good)) == list(good.values())
        assert memory.append("new", b"") == 2002  # 2001 is the event of the rescue
        assert_sound(memory)


KEPT = [n for n in range(1, 201) if n not in (5, 6, 100)]


def size_of(number: int) -> int:
    return (50, 300, 4400)[number % 3]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed memory with something in every table."""
    folder = tmp_path_factory.mktemp("sound")
    with open_memory(folder, create={"a": "b"}) as memory:
        for n in range(1, 201):
            candidates = [f"set {n % 5}"] if n % 3 else None
            key = f"key {n}" if n % 2 else None
            memory.append(f"label {n % 9}", record(n, size_of(n)), candidates, key)
        memory.forget([5, 6, 100])
    return folder


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.floats(0, 1, exclude_max=True), kind=st.sampled_from(["flip", "zero", "noise"]))
def test_whatever_is_damaged_nothing_wrong_is_ever_returned(
    sound: Path, tmp_path: Path, place: float, kind: str
) -> None:
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    size = (folder / FILE).stat().st_size
    at = int(place * size)
    if kind == "flip":
        flip(folder, at)
    elif kind == "zero":
        overwrite(folder, at // 512 * 512, bytes(512))
    else:
        overwrite(folder, at // PAGE * PAGE, random.Random(at).randbytes(PAGE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        try:
            memory = open_memory(folder)
        except StoreError:
            return  # the pages that describe the database itself
        with memory:
            report = verify(memory)
            ids = dict(memory.ids())
            good = {each.id: each.record for each in memory.stored(list(ids))}
            for example, data in good.items():
                assert data == record(example, size_of(example))
                assert ids[example] == f"label {example % 9}"
            missing = set(KEPT) - good.keys()
            if report.ok:  # the damage met bytes that nothing uses
                assert not missing
            assert missing & ids.keys() <= set(report.damaged)


def killed(folder: Path, to: Path) -> Path:
    """The files as a process would leave them that is killed now."""
    to.mkdir()
    for path in folder.iterdir():
        if not path.name.endswith("-shm"):
            shutil.copy(path, to)
    return to


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 0.99])
def test_a_truncated_log_is_noticed(tmp_path: Path, keep: float) -> None:
    with open_memory(tmp_path / "owned", create={}) as memory:
        memory.append_many([("cat", record(n, 4400)) for n in range(1, 11)])
        memory.truncate_log()
        for n in range(11, 31):
            memory.append("dog", record(n, 4400))
        folder = killed(tmp_path / "owned", tmp_path / "killed")
    log = folder / f"{FILE}-wal"
    with log.open("r+b") as file:
        file.truncate(int(keep * log.stat().st_size))
    with pytest.warns(StoreWarning, match=r"lost its events \d+ to 30"):
        reader = open_memory(folder, read_only=True)
    with reader:
        assert reader.lost is not None
        first = reader.lost[0]
        assert verify(reader).lost == (first, 30)
    with pytest.warns(StoreWarning, match=f"lost its events {first} to 30"):
        memory = open_memory(folder)
    with memory:
        assert 10 < first <= 30
        assert [example for example, _ in memory.ids()] == list(range(1, first))
        assert memory.read(range(1, first)) == [record(n, 4400) for n in range(1, first)]
        report = verify(memory)
        assert (report.damaged, report.problems, report.lost) == ((), (), (first, 30))
        assert f"events {first} to 30 were stored, and are lost" in str(report)
        assert memory.append("new", b"") == 32  # lost numbers are not used again; 31 tells of them
    with open_memory(folder) as memory:  # once told is enough, and the journal remembers
        lost = [event for event in memory.events() if event.kind == "lost"]
        assert [event.data for event in lost] == [{"first": first, "last": 30}]
        assert_sound(memory)


def test_a_whole_log_is_recovered_without_a_word(tmp_path: Path) -> None:
    with open_memory(tmp_path / "owned", create={}) as memory:
        for n in range(1, 31):
            memory.append("dog", record(n, 4400))
        folder = killed(tmp_path / "owned", tmp_path / "killed")
    with open_memory(folder) as memory:
        assert memory.read(range(1, 31)) == [record(n, 4400) for n in range(1, 31)]
        assert_sound(memory)


def test_a_damaged_event_is_named(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", b"one")
        memory.record_event("consolidate", {"note": "remarkable"})
    flip(tmp_path, (tmp_path / FILE).read_bytes().find(b"remarkable"))
    with open_memory(tmp_path) as memory:
        with pytest.raises(StoreError, match="Event 2 of the memory is damaged"):
            list(memory.events())
        assert verify(memory).problems == ("Event 2 is damaged.",)


@pytest.mark.parametrize(
    ("kind", "data"),
    [("evict", "{}"), ("rename", '{"before": [1], "label": "a"}'), ("merge", "[]"), ("note", "{")],
)
def test_a_forged_event_is_named(kind: str, data: str, tmp_path: Path) -> None:
    """Its checksum is right, and what replays it would not find its fields."""
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", b"one")
        with memory.writing() as db:
            entry = (2, kind, data, text_checksum(2, kind, data))
            db.execute("INSERT INTO event VALUES (?, ?, ?, ?)", entry)
        with pytest.raises(StoreError, match=rf"Event 2 \('{kind}'\) .* cannot be replayed"):
            list(memory.events())
        assert verify(memory).problems == ("Event 2 is damaged.",)
        assert rescue(memory, tmp_path / "new").examples == 1


def test_damaged_meta_is_refused(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={"fingerprint": "remarkable"}):
        pass
    flip(tmp_path, (tmp_path / FILE).read_bytes().find(b"remarkable"))
    with pytest.raises(StoreError, match="fingerprint"):
        open_memory(tmp_path)


def test_a_backup_replaces_a_damaged_memory(tmp_path: Path) -> None:
    records = filled(tmp_path / "used", 20)
    with open_memory(tmp_path / "used") as memory:
        backup(memory, tmp_path / "kept")
    overwrite(tmp_path / "used", 0, bytes(PAGE))
    with pytest.raises(StoreError, match="restore a backup"):
        open_memory(tmp_path / "used")
    shutil.copy(tmp_path / "kept" / FILE, tmp_path / "used" / FILE)
    with open_memory(tmp_path / "used") as memory:
        assert memory.read(range(1, 21)) == records
        assert_sound(memory)


def spoiled(folder: Path, change: str) -> list[bytes]:
    """A closed memory of 20 examples with two holes, and one statement of damage."""
    records = filled(folder, 20, size=3000)
    with open_memory(folder) as memory:
        memory.forget([3, 6])
    db = sqlite3.connect(folder / FILE)
    db.execute(change)
    db.commit()
    db.close()
    return records


def assert_others_whole(memory: Store, records: list[bytes], *gone: int) -> None:
    """Everything that was not damaged or forgotten itself is still what was stored."""
    whole = [n for n in range(1, 21) if n not in (3, 6, *gone)]
    assert memory.read(whole) == [records[n - 1] for n in whole]


PLACES = [
    "size = size + 4096", "size = 1 << 27", "size = 1 << 60", "size = -size", "size = 'x'",
    "start = start + 4096", "start = -5000", "start = 1 << 60", "start = 'x'",
]  # fmt: skip


@pytest.mark.parametrize("change", PLACES)
def test_forgetting_what_lies_in_a_damaged_place_takes_nothing_else(
    change: str, tmp_path: Path
) -> None:
    records = spoiled(tmp_path, f"UPDATE example SET {change} WHERE id = 7")
    with open_memory(tmp_path) as memory:
        assert verify(memory).damaged == (7,)
        with pytest.warns(StoreWarning, match="Example 7 is deleted, but it was damaged"):
            assert memory.forget([7]) == 1
        assert_others_whole(memory, records, 7)
        memory.append("new", record(99, 9000))
        assert_others_whole(memory, records, 7)


def test_bytes_that_were_damaged_are_overwritten_when_they_are_forgotten(tmp_path: Path) -> None:
    records = spoiled(tmp_path, "UPDATE example SET crc = crc + 1 WHERE id = 7")
    with open_memory(tmp_path) as memory:
        assert memory.forget([7]) == 1
        assert_others_whole(memory, records, 7)
        assert_sound(memory)
    assert b"<00000007:" not in on_disk(tmp_path)


@pytest.mark.parametrize("change", PLACES)
def test_compaction_with_a_damaged_place_takes_nothing_else(change: str, tmp_path: Path) -> None:
    records = spoiled(tmp_path, f"UPDATE example SET {change} WHERE id = 7")
    with open_memory(tmp_path) as memory:
        with suppress(StoreError):  # names it, where it stands in the way
            compact(memory)
        assert_others_whole(memory, records, 7)


@pytest.mark.parametrize(
    "change",
    ["start = start - 2048", "size = size + 8192", "size = 1 << 60", "size = -5", "size = 'x'"],
)
def test_no_record_is_put_where_another_is(change: str, tmp_path: Path) -> None:
    """Holes have no checksum: damage may say that there is room where there is none."""
    first = "(SELECT min(start) FROM hole)"
    records = spoiled(tmp_path, f"UPDATE hole SET {change} WHERE start = {first}")
    with open_memory(tmp_path) as memory:
        assert not verify(memory).ok
        added = memory.append_many(("new", record(n, 2900)) for n in range(90, 99))
        assert memory.read(added) == [record(n, 2900) for n in range(90, 99)]
        assert_others_whole(memory, records)
        compact(memory)
        assert_others_whole(memory, records)


@pytest.mark.parametrize("which", ["min", "max"])
def test_an_extent_of_another_size_takes_only_what_was_in_it(which: str, tmp_path: Path) -> None:
    extent = f"(SELECT {which}(id) FROM extent)"
    records = spoiled(tmp_path, f"UPDATE extent SET data = x'00' WHERE id = {extent}")
    with open_memory(tmp_path) as memory:
        damaged = verify(memory).damaged
        assert damaged
        new = memory.append("new", record(99, 4400))
        memory.forget(damaged)
        assert memory.read([new]) == [record(99, 4400)]
        assert_others_whole(memory, records, *damaged)


def test_an_extent_far_away_is_no_endless_check(tmp_path: Path) -> None:
    spoiled(tmp_path, "INSERT INTO extent VALUES (1 << 40, zeroblob(10))")
    with open_memory(tmp_path) as memory:
        assert verify(memory).damaged == ()


@pytest.mark.parametrize("change", ["key = x'ff'", "time = 'x'", "label = 'x'"])
def test_values_of_another_type_are_found(change: str, tmp_path: Path) -> None:
    records = spoiled(tmp_path, f"UPDATE example SET {change} WHERE id = 7")
    with open_memory(tmp_path) as memory:
        assert 7 in verify(memory).damaged
        assert rescue(memory, tmp_path / "new").left_out == (7,)
        assert_others_whole(memory, records, 7)


def test_a_damaged_count_takes_no_label_from_its_examples(tmp_path: Path) -> None:
    spoiled(tmp_path, "UPDATE label SET examples = 1")
    with open_memory(tmp_path) as memory:
        memory.forget([7])
        assert memory.label(12) == "label 2"


def test_a_damaged_count_evicts_nothing(tmp_path: Path) -> None:
    records = spoiled(tmp_path, "UPDATE label SET examples = 1000000 WHERE id = 1")
    with open_memory(tmp_path, cap=30) as memory:
        with pytest.raises(StoreError, match="counts more examples than it has"):
            memory.append("new", b"new")
        assert_others_whole(memory, records)


def test_a_damaged_hole_does_not_shorten_the_stream(tmp_path: Path) -> None:
    """Merged with the last range, it would let new records begin where others are."""
    last = "(SELECT start FROM example WHERE id = 20)"
    records = spoiled(
        tmp_path,
        f"UPDATE hole SET size = {last} - start WHERE start = (SELECT max(start) FROM hole)",
    )
    with open_memory(tmp_path) as memory:
        memory.forget([20])
        memory.append_many(("new", record(n, 2900)) for n in range(90, 99))
        assert_others_whole(memory, records, 20)


@pytest.mark.parametrize("data", ["'text'", "7"])
def test_free_room_of_another_type_is_not_used(data: str, tmp_path: Path) -> None:
    extent = f"(SELECT min(start) / {EXTENT} FROM hole)"
    records = spoiled(tmp_path, f"UPDATE extent SET data = {data} WHERE id = {extent}")
    with open_memory(tmp_path) as memory:
        damaged = verify(memory).damaged
        added = memory.append_many(("new", record(n, 2900)) for n in range(90, 99))
        assert memory.read(added) == [record(n, 2900) for n in range(90, 99)]
        assert_others_whole(memory, records, *damaged)
