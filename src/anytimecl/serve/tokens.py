"""Bearer tokens: each has a right, for some memories or for all."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from anytimecl.errors import AnytimeError, reason
from anytimecl.serve.granted import Granted
from anytimecl.serve.rights import RIGHTS, Grant, Right

log = logging.getLogger("anytimecl.serve")
SHORTEST = 16  # characters; shorter ones can be guessed
VARIABLES: dict[str, Right] = {
    "ANYTIMECL_READ_TOKEN": "read",
    "ANYTIMECL_WRITE_TOKEN": "write",
    "ANYTIMECL_ADMIN_TOKEN": "admin",
}
MEMORY_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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
                allowed = Grant(_unnamed(digest), allowed)
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
        return [*self._known, *self.granted]


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
    name = words[2] if len(words) == 3 else _unnamed(_digest(token.encode()))
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


def _unnamed(digest: bytes) -> str:
    """A name for a token that was given none."""
    return f"token-{digest.hex()[:8]}"
