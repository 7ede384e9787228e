"""Who may do what: bearer tokens that read, or read and write."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from anytimecl.errors import AnytimeError

Scope = Literal["read", "write"]
SHORTEST = 16  # characters; shorter ones can be guessed
VARIABLES: dict[str, Scope] = {"ANYTIMECL_READ_TOKEN": "read", "ANYTIMECL_WRITE_TOKEN": "write"}


class Tokens:
    """Known tokens by their digests; without any, everybody may do everything.

    >>> tokens = Tokens({"a token for reading": "read"})
    >>> tokens.scope("Bearer a token for reading")
    'read'
    >>> tokens.scope("Bearer another") is None
    True
    """

    def __init__(self, known: Mapping[str, Scope]) -> None:
        for token in known:
            if len(token) < SHORTEST:
                raise AnytimeError(
                    f"A token has at least {SHORTEST} characters, and one of these has "
                    f"{len(token)}. Make one with: openssl rand -hex 24"
                )
        self._known = [(_digest(token.encode()), scope) for token, scope in known.items()]

    def __bool__(self) -> bool:
        return bool(self._known)

    def scope(self, authorization: str) -> Scope | None:
        """What the header allows; None for a token that is missing or unknown.

        Every known digest is compared, and each in constant time: how long it takes says nothing.
        """
        given = _digest(_token(authorization))
        found: Scope | None = None
        for digest, scope in self._known:
            if hmac.compare_digest(digest, given):
                found = scope
        return found


def name_of(authorization: str) -> str:
    """One name for one token, however the header spells it."""
    return _digest(_token(authorization)).hex()


def read_tokens(file: Path | None, environment: Mapping[str, str]) -> Tokens:
    """From a file with lines such as `write 8d0c...`, and from the environment."""
    known: dict[str, Scope] = {}
    for name, scope in VARIABLES.items():
        if token := environment.get(name, "").strip():
            known[token] = scope
    if file is not None:
        known.update(_read_file(file))
    return Tokens(known)


def _read_file(file: Path) -> dict[str, Scope]:
    known: dict[str, Scope] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AnytimeError(f"The tokens in {file} cannot be read: {error}.") from error
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ("read", "write"):
            # The line itself may hold a secret, so it is not repeated.
            raise AnytimeError(f"{file}, line {number}: write `read TOKEN` or `write TOKEN`.")
        known[words[1]] = "read" if words[0] == "read" else "write"
    if not known:
        raise AnytimeError(f"There are no tokens in {file}: write `read TOKEN` or `write TOKEN`.")
    return known


def _token(authorization: str) -> bytes:
    """The token of a bearer, or the password where a program only knows Basic."""
    kind, _, value = authorization.partition(" ")
    value = value.strip()
    if kind.lower() == "bearer":
        return value.encode()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
