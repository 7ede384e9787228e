"""Tokens granted at run time, in a file beside the first memory.

The file has digests only, which are useless as tokens.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from anytimecl.errors import AnytimeError, StoreError
from anytimecl.files import replacing
from anytimecl.serve.rights import Grant

FILE = "granted.json"
VERSION = 1
Tokens = tuple[tuple[bytes, Grant], ...]  # with their digests


class Granted:
    """Tokens granted and not revoked; without a folder, in RAM only.

    >>> granted = Granted(None)
    >>> token = granted.add(Grant("camera", "write", frozenset({"cats"})))
    >>> [one.name for _, one in granted]
    ['camera']
    >>> granted.revoke("camera")
    True
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._lock = threading.Lock()
        self._tokens = _read(self._path)

    def __iter__(self) -> Iterator[tuple[bytes, Grant]]:
        """Each token's digest, and what it permits."""
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, grant: Grant) -> str | None:
        """Create a token, which cannot be read later; None if the name is taken."""
        token = secrets.token_hex(24)
        digest = hashlib.sha256(token.encode()).digest()
        with self._lock:
            if any(one.name == grant.name for _, one in self._tokens):
                return None
            self._write((*self._tokens, (digest, grant)))
        return token

    def revoke(self, name: str) -> bool:
        """Revoke a token; returns whether it existed."""
        with self._lock:
            left = tuple(one for one in self._tokens if one[1].name != name)
            found = len(left) < len(self._tokens)
            if found:
                self._write(left)
            return found

    def drop_memory(self, memory: str) -> None:
        """Revoke access to a deleted memory, so that a new one of its name is not accessible."""
        with self._lock:
            left = [
                (digest, replace(one, memories=one.memories - {memory}) if one.memories else one)
                for digest, one in self._tokens
            ]
            self._write(tuple(one for one in left if one[1].memories != frozenset()))

    def _write(self, tokens: Tokens) -> None:
        """To disk first, so that a revoked token stays revoked after a crash."""
        if self._path is not None and tokens != self._tokens:
            content = {"version": VERSION, "tokens": [_plain(*one) for one in tokens]}
            try:
                with replacing(self._path) as draft:
                    draft.touch(mode=0o600)
                    draft.write_text(json.dumps(content, indent=1), "utf-8")
            except OSError as error:
                raise StoreError(f"{self._path} cannot be written: {error}.") from error
        self._tokens = tokens


def _plain(digest: bytes, one: Grant) -> dict[str, Any]:
    return {
        "name": one.name,
        "sha256": digest.hex(),
        "right": one.right,
        "memories": None if one.memories is None else sorted(one.memories),
    }


def _read(path: Path | None) -> Tokens:
    if path is None or not path.exists():
        return ()
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']}, and {VERSION} is known")
        return tuple(
            (bytes.fromhex(one["sha256"]), Grant(one["name"], one["right"], _set(one["memories"])))
            for one in content["tokens"]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AnytimeError(
            f"The granted tokens in {path} cannot be read: {error!r}. Move the file away to start "
            "without them, and grant them anew."
        ) from error


def _set(memories: list[str] | None) -> frozenset[str] | None:
    return None if memories is None else frozenset(memories)
