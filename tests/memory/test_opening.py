"""Who may open a memory, and which memory can be opened."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.memory.checks import assert_sound, filled

from anytimecl import files
from anytimecl.errors import StoreError
from anytimecl.memory import Row, StoreWarning, backup, lock, open_memory, schema
from anytimecl.memory.checks import text_checksum
from anytimecl.memory.database import FILE
from anytimecl.memory.mark import Mark
from anytimecl.memory.opening import stored_meta
from anytimecl.memory.records import checksum
from anytimecl.memory.stream import EXTENT

OWNER = """
import sys
from pathlib import Path
from anytimecl.memory import open_memory
memory = open_memory(Path(sys.argv[1]), create={})
memory.append("cat", b"one")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["~/memory", "s3://bucket/memory", "file:///memory"])
def test_what_a_shell_or_a_store_would_resolve_is_no_new_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = "your home folder" if name.startswith("~") else "is an address"
    with pytest.raises(StoreError, match=told):
        open_memory(Path(name), create={})
    with open_memory(Path("m"), create={}) as memory, pytest.raises(StoreError, match=told):
        backup(memory, Path(name))
    assert [each.name for each in tmp_path.iterdir()] == ["m"]
    Path(name).parent.mkdir(parents=True)  # who has made it means it
    open_memory(Path(name), create={}).close()


@contextmanager
def another_owner(folder: Path) -> Iterator[int]:
    """Another process that has the memory open; gives its id."""
    code = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()


def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    with another_owner(tmp_path) as owner:
        with pytest.raises(StoreError, match=rf"in use by process {owner}: .*read_only=True"):
            open_memory(tmp_path)
        with open_memory(tmp_path, read_only=True) as memory:
            assert memory.labels() == {"cat": 1}
            with pytest.raises(StoreError, match="reading only"):
                memory.append("dog", b"two")
            assert_sound(memory)
    with open_memory(tmp_path) as memory:
        memory.append("dog", b"two")


@pytest.mark.parametrize("name", ["memory.lock", "memory.mark"])
def test_a_folder_that_cannot_be_written_says_so(name: str, tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(StoreError, match=rf"for writing: .*{name}: Is a directory.*read_only=True"):
        open_memory(tmp_path)
    with open_memory(tmp_path, read_only=True) as memory:
        assert len(memory) == 3


def test_a_file_system_without_locks_is_no_other_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(file: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", unsupported)
    with pytest.raises(StoreError, match="its lock: No locks available"):
        open_memory(tmp_path, create={})


def test_a_network_share_that_refuses_what_is_locked_has_another_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 1)

    def refused(file: int) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(lock, "_lock", refused)
    with pytest.raises(StoreError, match="in use by process"):
        open_memory(tmp_path)


def test_a_full_disk_has_room_for_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing could be forgotten to make room, and the lock stayed held."""
    filled(tmp_path, 3)

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lock.os, "write", full)
        open_memory(tmp_path).close()
    with open_memory(tmp_path) as memory:
        assert len(memory) == 3


@pytest.mark.parametrize("content", [b"\xff" * 12, b"", b"short", b"\x07" * 13])
def test_a_mark_that_is_damaged_says_nothing(content: bytes, tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / "memory.mark").write_bytes(content)
    with open_memory(tmp_path, read_only=True) as memory:
        assert len(memory) == 3
    with open_memory(tmp_path) as memory:
        assert_sound(memory)


def test_the_same_process_may_not_own_it_twice_either(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}):
        with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
            open_memory(tmp_path)
        with pytest.raises(StoreError, match="in use"):  # the failure above freed nothing
            open_memory(tmp_path)
    open_memory(tmp_path).close()


def test_a_reader_sees_what_the_owner_adds(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as owner:
        owner.append("cat", b"one")
        with open_memory(tmp_path, read_only=True) as reader:
            owner.append("dog", b"two")
            assert reader.labels() == {"cat": 1, "dog": 1}
            assert reader.read([1, 2]) == [b"one", b"two"]
            assert len(reader) == 2


def test_a_reader_in_the_middle_of_things_delays_secure_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anytimecl.memory.database._PATIENCE", 0.1)
    with open_memory(tmp_path, create={}) as owner:
        example = owner.append("cat", b"one")
        with open_memory(tmp_path, read_only=True) as reader:
            reader.db.execute("BEGIN")
            assert len(reader) == 1
            with pytest.warns(StoreWarning, match=r"stay in the .* log until .* is reading"):
                assert owner.forget([example]) == 1
            assert len(owner) == 0


def test_a_sealed_folder_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    records = filled(folder, 5)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o005 != 0o005:  # somebody else will walk there
            path.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    if root:
        os.seteuid(65534)  # root may write anywhere, so be somebody else for a while
    try:
        with open_memory(folder, read_only=True) as memory:
            assert memory.read(range(1, 6)) == records
            assert_sound(memory)
        with pytest.raises((StoreError, OSError)):
            open_memory(folder)
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.mark.parametrize("read_only", [True, False])
def test_where_there_is_no_memory(tmp_path: Path, read_only: bool) -> None:
    with pytest.raises(StoreError, match="no memory in"):
        open_memory(tmp_path / "none", read_only=read_only)
    assert not (tmp_path / "none").exists()
    (tmp_path / FILE).touch()
    with pytest.raises(StoreError, match="no memory in"):
        open_memory(tmp_path, read_only=read_only)
    with open_memory(tmp_path, create={"a": "b"}) as memory:
        assert memory.meta == {"a": "b"}


@pytest.mark.parametrize("read_only", [True, False])
def test_foreign_files_are_refused_and_left_alone(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        open_memory(tmp_path, read_only=read_only)
    path.unlink()
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE theirs (id)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a memory"):
        open_memory(tmp_path, create={}, read_only=read_only)
    assert path.read_bytes() == before


def test_an_older_version_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = filled(tmp_path, 10)
    newer = (*schema.MIGRATIONS, "ALTER TABLE example ADD COLUMN note TEXT; CREATE TABLE more (a)")
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    monkeypatch.setattr(schema.check, "__defaults__", (newer,))
    monkeypatch.setattr(schema.migrate, "__defaults__", (newer, None))
    with pytest.raises(StoreError, match=f"older version {len(newer) - 1}: open it"):
        open_memory(tmp_path, read_only=True)
    with open_memory(tmp_path) as memory:
        assert schema.version_of(memory.db) == len(newer)
        assert memory.db.execute("SELECT count(*) FROM more").fetchone() == (0,)
        assert memory.read(range(1, 11)) == records
        assert_sound(memory)


def test_examples_from_before_there_were_times_have_none(
    tmp_path: Path,
) -> None:
    """A memory of version 1, made by hand as that version made it."""
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    schema.migrate(db, schema.MIGRATIONS[:1], {"made": "long ago"})
    db.execute("INSERT INTO label VALUES (1, 'cat', 1, ?)", (text_checksum(1, "cat"),))
    record = b"an old record"
    db.execute("INSERT INTO extent VALUES (0, ?)", (record + bytes(EXTENT - len(record)),))
    old = (1, 1, None, 0, len(record), checksum(1, 1, None, "key", record), "key")
    db.execute("INSERT INTO example VALUES (?, ?, ?, ?, ?, ?, ?)", old)
    db.close()
    with open_memory(tmp_path) as memory:
        assert_sound(memory)
        assert memory.rows([1]) == [(1, Row("cat", record, None, "key", None))]
        memory.append("cat", b"a new one")
        [(_, new)] = memory.rows([2])
        assert new.time is not None
        assert abs(new.time / 1000 - time.time()) < 60
        assert_sound(memory)


def test_examples_from_before_there_were_digests_have_none(tmp_path: Path) -> None:
    """A memory of version 2, as that version left it: opened, it goes on with digests."""
    records = filled(tmp_path, 10)
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    for table in ("content", "used_key", "source", "thumbnail", "withdrawn"):  # and their indexes
        db.execute(f"DROP TABLE {table}")
    db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(StoreError, match="older version 2: open it"):
        open_memory(tmp_path, read_only=True)
    with open_memory(tmp_path) as memory:
        assert schema.version_of(memory.db) == len(schema.MIGRATIONS)
        assert memory.read(range(1, 11)) == records
        assert {row.content for _, row in memory.rows(range(1, 11))} == {None}
        assert memory.find_content(7) is None
        memory.append("cat", b"a new one", content=7)
        assert memory.find_content(7) == (11, "cat")
        assert_sound(memory)
    with open_memory(tmp_path, read_only=True) as memory:
        assert memory.find_content(7) == (11, "cat")


def test_what_was_known_before_there_were_checksums_of_it_is_believed(tmp_path: Path) -> None:
    """A memory of version 5, as that version left it."""
    filled(tmp_path, 2)
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    for table, column in (("content", "digest"), ("source", "name"), ("thumbnail", "data")):
        db.execute(f"ALTER TABLE {table} DROP COLUMN crc")
        value = b"a picture" if table == "thumbnail" else 7 if table == "content" else "a.jpg"
        db.execute(f"INSERT OR REPLACE INTO {table} (example, {column}) VALUES (1, ?)", (value,))
    db.execute("PRAGMA user_version = 5")
    db.close()
    with open_memory(tmp_path) as memory:
        [(_, row)] = memory.rows([1])
        assert (row.content, row.source, row.thumbnail) == (7, "a.jpg", b"a picture")
        assert memory.find_content(7) is not None
        assert_sound(memory)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    steps = (*schema.MIGRATIONS, "CREATE TABLE more (a)", "CREATE TABLE more (a)")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        schema.migrate(db, steps)
    assert schema.version_of(db) == len(schema.MIGRATIONS)
    assert not db.execute("SELECT name FROM sqlite_master WHERE name = 'more'").fetchall()
    db.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_newer_version_is_refused(tmp_path: Path, read_only: bool) -> None:
    filled(tmp_path, 3)
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match=r"version 99, .*update anytimecl"):
        open_memory(tmp_path, read_only=read_only)


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("full", 2)])
def test_durability_is_set(tmp_path: Path, durability: str, synchronous: int) -> None:
    with open_memory(tmp_path, create={}, durability=durability) as memory:  # type: ignore[arg-type]
        assert memory.db.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert memory.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert memory.db.execute("PRAGMA page_size").fetchone() == (4096,)
        assert memory.append("cat", b"one") == 1


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match='"process" or "full"'):
        open_memory(tmp_path, create={}, durability="none")  # type: ignore[arg-type]


def test_nothing_is_acknowledged_in_a_memory_that_was_removed(tmp_path: Path) -> None:
    with open_memory(tmp_path / "memory", create={}) as memory:
        memory.append("cat", b"one")
        (tmp_path / "memory").rename(tmp_path / "moved")
        memory.append("cat", b"two")  # it is not lost
        (tmp_path / "moved").rename(tmp_path / "memory")
        backup(memory, tmp_path / "backup")
        shutil.rmtree(tmp_path / "memory")
        with pytest.raises(StoreError, match="was removed while it was in use"):
            memory.append("cat", b"three")
        shutil.copytree(tmp_path / "backup", tmp_path / "memory")  # which is not the same one
        with pytest.raises(StoreError, match="was removed while it was in use"):
            memory.append("cat", b"three")
    with open_memory(tmp_path / "memory") as memory:
        assert len(memory) == 2


def test_nothing_is_acknowledged_in_a_memory_whose_database_alone_was_removed(
    tmp_path: Path,
) -> None:
    """As by somebody who begins anew, and leaves the rest of the folder."""
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", b"one")
        for file in tmp_path.glob(f"{FILE}*"):
            file.unlink()
        with pytest.raises(StoreError, match="was removed while it was in use"):
            memory.append("cat", b"two")


def test_a_memory_that_has_lost_its_database_is_no_new_one(tmp_path: Path) -> None:
    told = rf"lost its {FILE}, .* event 3; .*: memory.lock, memory.mark, checkpoint\. Restore"
    filled(tmp_path, 3)
    (tmp_path / "checkpoint").mkdir()
    before = (tmp_path / FILE).rename(tmp_path / "elsewhere")
    for options in ({"create": {}}, {}, {"read_only": True}):
        with pytest.raises(StoreError, match=told):
            open_memory(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=told):
        stored_meta(tmp_path)
    before.rename(tmp_path / FILE)
    with open_memory(tmp_path) as memory:
        assert len(memory) == 3


@pytest.mark.parametrize("read_only", [True, False])
def test_a_mark_impossibly_far_away_is_refused(read_only: bool, tmp_path: Path) -> None:
    """Else the next example had that number, and lists are indexed by it."""
    filled(tmp_path, 3)
    mark = Mark(tmp_path / "memory.mark")
    mark.put(1 << 62)
    mark.close()
    with pytest.raises(StoreError, match=r"mark or checkpoint tells of event 46.* impossibly far"):
        open_memory(tmp_path, read_only=read_only)
    (tmp_path / "memory.mark").unlink()
    with open_memory(tmp_path) as memory:
        assert len(memory) == 3


def test_a_folder_where_nothing_was_acknowledged_holds_a_new_memory(tmp_path: Path) -> None:
    open_memory(tmp_path, create={}).close()
    (tmp_path / FILE).unlink()
    open_memory(tmp_path, create={}).close()
    filled(tmp_path, 3)
    for file in tmp_path.iterdir():
        file.unlink()
    with open_memory(tmp_path, create={}) as memory:
        assert len(memory) == 0


def test_the_folders_of_a_memory_that_lasts_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync", synced.append)
    open_memory(tmp_path / "a" / "b", create={}, durability="full").close()
    assert synced == [tmp_path, tmp_path / "a"]
    open_memory(tmp_path / "a" / "b", durability="full").close()
    assert len(synced) == 2
