"""State of an inbox, stored in the memory's folder: images answered, skipped and encoded.

Images are identified by a digest of name, size and time of modification: no name is stored, so
forgetting an example leaves none, and another file of the same name is another image. An embedding
is overwritten as soon as its image is answered.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anytimecl.backbone.spec import Spec
from anytimecl.files import replacing

FOLDER = "inbox"  # in that of the memory
KNOWN = "known"  # was in the memory before: not labelled in the inbox
VERSION = 2  # 1 had names, and kept the embeddings of answered images

Vector = np.ndarray[Any, np.dtype[np.float16]]


class State:
    """Answers, skips and embeddings; each is written to disk before it takes effect.

    Parameters
    ----------
    memory
        File of the memory, None in RAM.
    over
        The images' folder or names: an inbox over the same ones continues.
    keys
        Name -> digest of each image.
    """

    def __init__(self, memory: Path | None, over: Any, keys: Mapping[str, str], spec: Spec) -> None:
        self.vectors: dict[str, Vector] = {}
        self.done: dict[str, int | None] = {}  # key -> the example it became; None: skipped
        self._acts: list[tuple[str, int | None]] = []
        self._rows: dict[str, int] = {}  # key -> row of its embedding
        self._file: Path | None = None
        if memory is None:
            return
        about = json.dumps([spec.fingerprint, over]).encode()
        folder = memory.parent / FOLDER
        folder.mkdir(exist_ok=True)
        self._file = folder / f"{hashlib.sha256(about).hexdigest()[:16]}.jsonl"
        if self._file.exists():
            self._load(spec.dim, keys)
        else:
            self._write({"version": VERSION})

    def _load(self, dim: int, keys: Mapping[str, str]) -> None:
        lines = list(self._lines())
        if not lines or "version" not in lines[0]:
            lines = self._converted(lines, keys)
        raw = self._vector_file
        whole = raw.read_bytes() if raw.exists() else b""
        stored = np.frombuffer(whole[: len(whole) // (2 * dim) * 2 * dim], np.float16)
        stored = stored.reshape(-1, dim)
        for told in lines:
            if "row" in told:
                if told["row"] < len(stored):
                    self.vectors[told["key"]] = stored[told["row"]]
                    self._rows[told["key"]] = told["row"]
            elif "did" in told:
                self._apply(told["key"], told["did"], told.get("example"))

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self._file is not None
        for line in self._file.read_text("utf-8", "surrogatepass").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # interrupted by a kill, and never acknowledged

    def _converted(self, lines: list[dict[str, Any]], keys: Mapping[str, str]) -> Any:
        """Convert lines of version 1, for images that still exist."""
        assert self._file is not None
        found: list[dict[str, Any]] = [{"version": VERSION}]
        for told in lines:
            if (key := keys.get(told.pop("name", ""))) is not None:
                found.append({"key": key} | told)
        with replacing(self._file) as draft:
            draft.write_text("".join(json.dumps(told) + "\n" for told in found), "utf-8")
        return found

    def add(self, key: str, vector: Vector) -> None:
        """Store the embedding of an image."""
        if self._file is not None:
            with self._vector_file.open("ab") as raw:
                row = raw.tell() // vector.nbytes
                raw.truncate(row * vector.nbytes)  # a write that was interrupted
                raw.write(vector.tobytes())
            self._write({"key": key, "row": row})
            self._rows[key] = row
        self.vectors[key] = vector

    def note(self, key: str, did: str, example: int | None = None) -> None:
        """Store that an image was answered, skipped or known, or that this was undone."""
        self._write({"key": key, "did": did, "example": example})
        self._apply(key, did, example)

    def last(self) -> tuple[str, int | None] | None:
        """The last image that was answered or skipped."""
        return self._acts[-1] if self._acts else None

    def _apply(self, key: str, did: str, example: int | None) -> None:
        if did == "undo":
            self._acts = [act for act in self._acts if act[0] != key]
            self.done.pop(key, None)
        else:
            if did != KNOWN:
                self._acts.append((key, example))
            self.done[key] = example
            self._drop(key)

    def _drop(self, key: str) -> None:
        vector, row = self.vectors.pop(key, None), self._rows.pop(key, None)
        if vector is not None and row is not None and vector.any():
            with self._vector_file.open("r+b") as raw:
                raw.seek(row * vector.nbytes)
                raw.write(bytes(vector.nbytes))

    @property
    def _vector_file(self) -> Path:
        assert self._file is not None
        return self._file.with_suffix(".f16")

    def _write(self, told: dict[str, Any]) -> None:
        if self._file is None:
            return
        with self._file.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # a write that was interrupted: begin a line of its own
                    file.write(b"\n")
            file.write(json.dumps(told).encode() + b"\n")
