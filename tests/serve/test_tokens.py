"""Reading tokens."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from anytimecl.errors import AnytimeError
from anytimecl.serve import tokens as module
from anytimecl.serve.tokens import AccessTokens, read_tokens

LONG = "0123456789abcdef"


def test_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# of the team\n\nread {LONG}-r\nwrite {LONG}-w\n")
    known = read_tokens(file, {"ANYTIMECL_READ_TOKEN": f"{LONG}-e", "ANYTIMECL_WRITE_TOKEN": " "})
    found = [known.find(f"Bearer {LONG}-{end}") for end in "rwex"]
    assert [one and one.right for one in found] == ["read", "write", "read", None]
    assert known.find("") is None
    assert known.find(f"{LONG}-w") is None  # not a bearer


def test_none_at_all() -> None:
    assert not read_tokens(None, {})


@pytest.mark.parametrize(
    ("content", "told"),
    [("", "no tokens"), ("owner 0123456789abcdef", "line 1"), ("write short", "at least 16"),
     ("read", "line 1"), ("admin 0123456789abcdef me memories=cats", "admin is for all"),
     ("read 0123456789abcdef memories=../up", "names of memories")],
)  # fmt: skip
def test_files_that_are_wrong(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(content)
    with pytest.raises(AnytimeError, match=told) as error:
        read_tokens(file, {})
    assert "0123456789abcdef" not in str(error.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(AnytimeError, match="cannot be read"):
        read_tokens(tmp_path / "nothing", {})


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    class Watched:
        @staticmethod
        def compare_digest(one: bytes, two: bytes) -> bool:
            compared.append((one, two))
            return hmac.compare_digest(one, two)

    monkeypatch.setattr(module, "hmac", Watched)
    known = AccessTokens({f"{LONG}-1": "read", f"{LONG}-2": "write", f"{LONG}-3": "read"})
    for given in (f"Bearer {LONG}-1", "Bearer x", ""):
        compared.clear()
        known.find(given)
        assert len(compared) == 3  # none ends the search early
        assert {len(value) for pair in compared for value in pair} == {32}  # lengths do not leak
