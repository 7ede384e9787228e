"""A promise is kept, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

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
