"""Corrections in the journal: what they say, what forgetting leaves of them, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.memory.checks import assert_sound

from anytimecl.errors import StoreError
from anytimecl.memory import RamMemory, Store, StoreWarning, acts, censoring, open_memory


def undo(memory: Store, steps: int = 1) -> None:
    with memory.writing():
        for event in acts.last_acts(memory, steps):
            acts.undo(memory, event)


def assert_nowhere(folder: Path, *words: bytes) -> None:
    for file in folder.rglob("*"):
        for word in words:
            assert file.is_dir() or word not in file.read_bytes(), (file, word)


def test_forgetting_reaches_every_name_that_a_label_had(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", b"stays")
        example = memory.append("wombat", b"goes")
        for old, new in (("wombat", "quokka"), ("quokka", "numbat"), ("cat", "puss")):
            with memory.writing():
                acts.rename(memory, old, new)
        memory.forget([example])
        assert_nowhere(tmp_path, b"wombat", b"quokka", b"numbat")
        assert [act.before for act in memory.history().acts.values()] == [("cat",)]
        assert_sound(memory)


def test_what_was_taken_back_leaves_no_label_in_the_journal(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        kept = memory.append("cat", b"stays")
        with memory.writing():
            acts.move(memory, [kept], "dog")
        example = memory.append("wombat", b"goes", key="an upload")
        with memory.writing():
            acts.move(memory, [example], "quokka", keys=["another one"])
        undo(memory, 2)
        censoring.purge(memory, memory.last)
        memory.truncate_log()
        assert_nowhere(tmp_path, b"wombat", b"quokka", b"an upload", b"another one")
        undo(memory)  # the correction of the other one is as it was
        assert memory.labels() == {"cat": 1}
        assert_sound(memory)


def test_a_name_that_was_taken_back_leaves_no_trace(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        ids = [memory.append("cat", b"1"), memory.append("cat", b"2")]
        with memory.writing():
            acts.rename(memory, "cat", "Quentin")
            acts.move(memory, ids[:1], "Xaver")
        undo(memory, 2)
        with memory.writing():
            acts.rename(memory, "cat", "tom")  # this one stays
        before = memory.history().labels_of(ids, ["tom"])
        assert before >= {"Quentin", "Xaver", "cat", "tom"}
        censoring.purge(memory, ids[-1])  # a checkpoint from before all that needs it yet
        assert memory.history().labels_of(ids, ["tom"]) == before
    with open_memory(tmp_path) as memory:
        censoring.purge(memory, memory.last)
        memory.truncate_log()
        assert_nowhere(tmp_path, b"Quentin", b"Xaver")
        assert memory.labels() == {"tom": 2}
        undo(memory)  # of the name that stayed
        assert memory.labels() == {"cat": 2}
        undo(memory, 2)
        assert len(memory) == 0
        with pytest.raises(StoreError, match="nothing came before"):
            undo(memory)
        assert_sound(memory)


def test_a_name_that_was_taken_back_and_is_a_label_stays() -> None:
    with RamMemory() as memory:
        ids = [memory.append("cat", b"1"), memory.append("dog", b"2")]
        with memory.writing():
            acts.move(memory, ids[:1], "dog")
        undo(memory)
        censoring.purge(memory, memory.last)
        assert memory.history().labels_of(ids[:1]) == {"cat", "dog"}


def test_a_correction_is_undone_for_those_that_are_left() -> None:
    with RamMemory(cap=4) as memory:
        ids = [memory.append("cat", bytes([n])) for n in range(3)]
        memory.append("dog", b"dog")
        with memory.writing():
            acts.move(memory, ids, "dog", kind=acts.MERGE)
        memory.append("okapi", b"takes the place of the first")
        undo(memory, 2)
        assert memory.labels() == {"dog": 1, "cat": 2}
        assert_sound(memory)


def test_a_correction_of_what_was_evicted_does_not_bar_the_way() -> None:
    with RamMemory(cap=2) as memory:
        first = memory.append("cat", b"1")
        with memory.writing():
            acts.move(memory, [first], "dog")
            acts.rename(memory, "dog", "hound")
        second = memory.append("okapi", b"2")
        memory.append("zebra", b"3")  # in place of the first
        assert [memory.label(each) for each in (second, second + 1)] == ["okapi", "zebra"]
        undo(memory, 3)  # both lessons, and a new name that nothing has any more
        assert len(memory) == 0
        with pytest.raises(StoreError, match="Nothing can be undone"):
            undo(memory)


def test_what_was_taken_back_is_not_called_damaged() -> None:
    with RamMemory() as memory:
        example = memory.append("cat", b"record")
        undo(memory)
        with pytest.raises(StoreError, match=f"no example {example}: it was taken back"):
            memory.example(example)
        with pytest.warns(StoreWarning, match=f"no example {example}: it was taken back"):
            assert memory.rows([example]) == []
