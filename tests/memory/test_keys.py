"""Keys of requests outlive their examples, as digests."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from tests.memory.checks import assert_sound

from anytimecl.errors import StoreError
from anytimecl.memory import RamMemory, RequestKey, Row, backup, open_memory, rescue, schema, verify
from anytimecl.memory.database import FILE

KEY = RequestKey("upload-17", b"a cat")


def test_a_key_is_known_after_its_example_is_forgotten(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        example = memory.append("cat", b"record", key=KEY)
        assert memory.has_key("upload-17") == example
        memory.forget([example])
        assert memory.has_key("upload-17") is None
    with open_memory(tmp_path) as memory:
        used = memory.used_key("upload-17")
        assert used is not None
        assert (used.example, used.content) == (example, KEY.content)
        assert used.content != RequestKey("upload-17", b"a dog").content
        assert memory.used_key("upload-18") is None
        assert_sound(memory)


def test_nothing_but_digests_stays(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        memory.forget([memory.append("cat", b"record", key=RequestKey("a-name.jpg", b"a cat"))])
    for file in tmp_path.iterdir():
        assert b"a-name.jpg" not in file.read_bytes()


def test_the_same_content_has_another_digest_under_another_key() -> None:
    assert RequestKey("a", b"same").content != RequestKey("b", b"same").content


def test_an_ordinary_key_goes_with_its_example() -> None:
    with RamMemory() as memory:
        memory.forget([memory.append("cat", b"record", key="plain")])
        assert memory.used_key("plain") is None
        assert memory.append("cat", b"record", key="plain") == 3


def test_an_example_that_is_not_stored_leaves_no_key() -> None:
    with RamMemory() as memory:
        with suppress(RuntimeError), memory.writing():
            memory.add(Row("cat", b"record", key=KEY))
            raise RuntimeError
        assert memory.used_key(KEY) is None


def test_backup_and_rescue_know_the_keys(tmp_path: Path) -> None:
    with open_memory(tmp_path / "own", create={}) as memory:
        memory.forget([memory.append("cat", b"record", key=KEY)])
        backup(memory, tmp_path / "backup")
        rescue(memory, tmp_path / "rescued")
        expected = memory.used_key(KEY)
    for copy in ("backup", "rescued"):
        with open_memory(tmp_path / copy) as memory:
            assert memory.used_key(KEY) == expected


def test_damage_is_found(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", b"record", key=KEY)
        with memory.writing() as db:
            db.execute("UPDATE used_key SET example = 7")
        with pytest.raises(StoreError, match="damaged"):
            memory.used_key(KEY)
        assert verify(memory).problems == ("1 used keys are damaged.",)


def test_a_memory_from_before_there_were_used_keys_goes_on(tmp_path: Path) -> None:
    """Made as version 2 made it."""
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    schema.migrate(db, schema.MIGRATIONS[:2], {"made": "long ago"})
    db.close()
    with open_memory(tmp_path) as memory:
        assert schema.version_of(memory.db) == len(schema.MIGRATIONS)
        assert memory.used_key(KEY) is None
        example = memory.append("cat", b"record", key=KEY)
        used = memory.used_key(KEY)
        assert used is not None
        assert used.example == example
        assert_sound(memory)
