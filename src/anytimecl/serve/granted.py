"""Tokens granted at run time, in a file beside the first memory.

The file has digests only, which are useless as tokens.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from anytimecl.errors import AnytimeError, StoreError
from anytimecl.files import replacing

FILE = "granted.json"
VERSION = 1


@dataclass(frozen=True)
class GrantedToken:
    """A stored token."""

    name: str
    digest: bytes
    right: Literal["read", "write", "admin"]
    memories: frozenset[str] | None  # None: all


class Granted:
    """Tokens granted and not revoked; without a folder, in RAM only.

    >>> granted = Granted(None)
    >>> token = granted.add("camera", "write", ["cats"])
    >>> [one.name for one in granted]
    ['camera']
    >>> granted.revoke("camera")
    True
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._lock = threading.Lock()
        self._tokens = _read(self._path)

    def __iter__(self) -> Iterator[GrantedToken]:
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def add(
        self,
        name: str,
        right: Literal["read", "write", "admin"],
        memories: Collection[str] | None,
    ) -> str | None:
        """Create a token, which cannot be read later; None if the name is taken."""
        token = secrets.token_hex(24)
        digest = hashlib.sha256(token.encode()).digest()
        chosen = None if memories is None else frozenset(memories)
        with self._lock:
            if any(one.name == name for one in self._tokens):
                return None
            self._write((*self._tokens, GrantedToken(name, digest, right, chosen)))
        return token

    def revoke(self, name: str) -> bool:
        """Revoke a token; returns whether it existed."""
        with self._lock:
            left = tuple(one for one in self._tokens if one.name != name)
            found = len(left) < len(self._tokens)
            if found:
                self._write(left)
            return found

    def drop_memory(self, memory: str) -> None:
        """Revoke access to a deleted memory, so that a new one of its name is not accessible."""
        with self._lock:
            left = [
                replace(one, memories=one.memories - {memory}) if one.memories else one
                for one in self._tokens
            ]
            self._write(tuple(one for one in left if one.memories is None or one.memories))

    def _write(self, tokens: tuple[GrantedToken, ...]) -> None:
        """To disk first, so that a revoked token stays revoked after a crash."""
        if self._path is not None and tokens != self._tokens:
            content = {"version": VERSION, "tokens": [_plain(one) for one in tokens]}
            try:
                with replacing(self._path) as draft:
                    draft.touch(mode=0o600)
                    draft.write_text(json.dumps(content, indent=1), "utf-8")
            except OSError as error:
                raise StoreError(f"{self._path} cannot be written: {error}.") from error
        self._tokens = tokens


def _plain(one: GrantedToken) -> dict[str, Any]:
    return {
        "name": one.name,
        "sha256": one.digest.hex(),
        "right": one.right,
        "memories": None if one.memories is None else sorted(one.memories),
    }


def _read(path: Path | None) -> tuple[GrantedToken, ...]:
    if path is None or not path.exists():
        return ()
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']}, and {VERSION} is known")
        return tuple(
            GrantedToken(
                one["name"],
                bytes.fromhex(one["sha256"]),
                one["right"],
                None if one["memories"] is None else frozenset(one["memories"]),
            )
            for one in content["tokens"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AnytimeError(
            f"The granted tokens in {path} cannot be read: {error!r}. Move the file away to start "
            "without them, and grant them anew."
        ) from error
