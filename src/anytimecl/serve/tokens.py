"""Bearer tokens: each has a right, for some memories or for all."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from anytimecl.errors import AnytimeError, reason
from anytimecl.serve.granted import Granted

log = logging.getLogger("anytimecl.serve")
Right = Literal["read", "write", "admin"]  # each includes those before it
RIGHTS: tuple[Right, ...] = get_args(Right)
SHORTEST = 16  # characters; shorter ones can be guessed
VARIABLES: dict[str, Right] = {
    "ANYTIMECL_READ_TOKEN": "read",
    "ANYTIMECL_WRITE_TOKEN": "write",
    "ANYTIMECL_ADMIN_TOKEN": "admin",
}
MEMORY_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Grant:
    """The right of a token, and its memories.

    >>> Grant("camera", "write", frozenset({"cats"})).covers(["cats"])
    True
    """

    name: str  # for logs
    right: Right
    memories: frozenset[str] | None = None  # None: all, future ones included

    def covers(self, memories: Collection[str] | None) -> bool:
        """Whether it is valid for these memories; None: for all memories."""
        if self.memories is None:
            return True
        return memories is not None and self.memories.issuperset(memories)

    def includes(self, right: Right) -> bool:
        """Whether its right includes this one."""
        return RIGHTS.index(self.right) >= RIGHTS.index(right)


EVERYTHING = Grant("", "admin")  # for clients of a service without tokens


class AccessTokens:
    """Known tokens by their digests; without any, everything is allowed.

    The operator's (file and environment) are fixed; those in `granted` are managed at run time.

    >>> tokens = AccessTokens({"a token for reading": "read"})
    >>> tokens.find("Bearer a token for reading").right
    'read'
    >>> tokens.find("Bearer another") is None
    True
    """

    def __init__(
        self,
        known: Mapping[str, Right | Grant],
        names: Mapping[str, str] | None = None,
        granted: Granted | None = None,
    ) -> None:
        self.granted = Granted(None) if granted is None else granted
        self._known: list[tuple[bytes, Grant]] = []
        for token, allowed in known.items():
            if len(token) < SHORTEST:
                raise AnytimeError(
                    f"A token has at least {SHORTEST} characters, and one of these has "
                    f"{len(token)}. Make one with: openssl rand -hex 24"
                )
            digest = _digest(token.encode())
            if not isinstance(allowed, Grant):
                name = (names or {}).get(token, f"token-{digest.hex()[:8]}")
                allowed = Grant(name, allowed)
            self._known.append((digest, allowed))

    def __bool__(self) -> bool:
        return bool(self._known)

    def __iter__(self) -> Iterator[Grant]:
        """The operator's tokens, then granted ones."""
        return (grant for _, grant in self._all())

    def find(self, authorization: str) -> Grant | None:
        """The grant of an Authorization header; None if the token is missing or unknown.

        All known digests are compared, each in constant time, so that timing reveals nothing.
        """
        given = _digest(_token(authorization))
        found: Grant | None = None
        for digest, grant in self._all():
            if hmac.compare_digest(digest, given):
                found = grant
        return found

    def replace(self, other: AccessTokens) -> None:
        """Replace the operator's tokens; raises if only one of both sets is empty."""
        if bool(other) != bool(self):
            raise AnytimeError("Tokens are set or not from the start; restart to change that.")
        self._known = other._known

    def _all(self) -> list[tuple[bytes, Grant]]:
        return self._known + [
            (one.digest, Grant(one.name, one.right, one.memories)) for one in self.granted
        ]


def name_of(authorization: str) -> str:
    """Digest of the token, independent of the header's spelling."""
    return _digest(_token(authorization)).hex()


def read_tokens(file: Path | None, environment: Mapping[str, str]) -> AccessTokens:
    """Read tokens from a file and the environment.

    Lines of the file are such as `write 8d0c... name memories=cats,dogs`; name and memories are
    optional.
    """
    known: dict[str, Right | Grant] = {}
    for variable, right in VARIABLES.items():
        if token := environment.get(variable, "").strip():
            known[token] = Grant(variable, right)
    if file is not None:
        known.update(_read_file(file))
    return AccessTokens(known)


def warn_if_shared(file: Path | None) -> None:
    """Log a warning if other users can read the file of tokens."""
    if file is not None and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning("the tokens in %s can be read by others: chmod 600 %s", file, file)


def _read_file(file: Path) -> dict[str, Right | Grant]:
    found: dict[str, Right | Grant] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AnytimeError(f"The tokens in {file} cannot be read: {reason(error)}.") from error
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            token, allowed = _line(words, f"{file}, line {number}")
            found[token] = allowed
    if not found:
        raise AnytimeError(f"There are no tokens in {file}: write `read TOKEN` or `write TOKEN`.")
    return found


def _line(words: list[str], where: str) -> tuple[str, Right | Grant]:
    memories: frozenset[str] | None = None
    right: Right | None = next((right for right in RIGHTS if right == words[0]), None)
    if len(words) > 2 and words[-1].startswith("memories="):
        memories = frozenset(words.pop().removeprefix("memories=").split(","))
        if right == "admin" or not all(map(MEMORY_NAME.fullmatch, memories)):
            raise AnytimeError(
                f"{where}: write `memories=cats,dogs` with names of memories, for the rights read "
                "and write; admin is for all memories."
            )
    if right is None or len(words) not in (2, 3):
        # The line may contain a secret, so it is not repeated.
        raise AnytimeError(
            f"{where}: write `read TOKEN`, `write TOKEN` or `admin TOKEN`, then a name and "
            "`memories=cats,dogs` if you like."
        )
    token = words[1]
    name = words[2] if len(words) == 3 else f"token-{name_of(f'Bearer {token}')[:8]}"
    return token, Grant(name, right, memories)


def _token(authorization: str) -> bytes:
    """The bearer token, or the password of Basic authentication."""
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
