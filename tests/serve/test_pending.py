"""A promise is kept, and not for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests import helpers

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import StoreError
from anytimecl.serve.engine import Engine
from anytimecl.serve.options import Options
from anytimecl.serve.pending import FILE, TRIES, Pending, Promise


def test_comes_back_until_it_is_cleared(tmp_path: Path) -> None:
    pending = Pending(tmp_path)
    assert pending.read() is None
    pending.write(Promise(epochs=3, begun=1))
    assert Pending(tmp_path).read() == Promise(3, 1)
    pending.clear()
    assert Pending(tmp_path).read() is None


def test_what_was_begun_often_is_given_up(tmp_path: Path) -> None:
    """It may be what ends the process."""
    Pending(tmp_path).write(Promise(epochs=3, begun=TRIES))
    assert Pending(tmp_path).read() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"epochs": 0, "begun": 0}', '{"epochs": "x"}'])
def test_rubbish_is_no_promise(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert Pending(tmp_path).read() is None


def taught(folder: Path) -> Engine:
    classifier = AnytimeClassifier.open(folder, model=helpers.model(), settings=helpers.settings())
    classifier.learn_one(*helpers.lesson(0))
    return Engine(classifier, Options())


def test_a_job_that_is_quick_leaves_no_promise(tmp_path: Path) -> None:
    """Even if it is done before whoever asked for it is told so."""
    engine = taught(tmp_path)
    engine.turns.submit = lambda job: job()  # type: ignore[assignment,method-assign,return-value]
    assert engine.jobs.get(engine.consolidate(1).id).state == "done"  # type: ignore[union-attr]
    assert Pending(tmp_path).read() is None
    engine.close()


def test_what_is_done_is_crossed_out_before_it_is_told(tmp_path: Path) -> None:
    """Else the promise of a job that is begun at once would be crossed out in its place."""
    engine, noted = taught(tmp_path), {}
    engine.broadcast.send = lambda kind, data: noted.update(  # type: ignore[method-assign]
        {data["state"]: Pending(tmp_path).read()}
    )
    engine.turns.submit = lambda job: job()  # type: ignore[assignment,method-assign,return-value]
    engine.consolidate(1)
    engine.close()
    assert noted == {"running": Promise(1, 1), "done": None}


def test_a_full_disk_keeps_no_memory_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taught(tmp_path).close()
    Pending(tmp_path).write(Promise(epochs=1, begun=1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    classifier = AnytimeClassifier.open(tmp_path, model=helpers.model())
    monkeypatch.setattr(os, "replace", full)
    engine = Engine(classifier, Options())
    monkeypatch.undo()
    assert "does not begin again" in caplog.text
    assert engine.jobs.latest() is None
    engine.close()


def test_what_cannot_be_noted_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = taught(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        engine.consolidate(1)
    monkeypatch.undo()
    assert engine.jobs.latest() is None
    assert engine.consolidate(1).kind == "consolidate"
    engine.close()
