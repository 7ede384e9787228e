"""Text embeddings of labels: prompts and a cache.

Label sets recur, and text towers are slow on a laptop, so embeddings are cached in RAM and on disk
by model fingerprint, templates and label.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.errors import LabelError, ModelError
from anytimecl.labels import clean_label

PROMPTS_AT_ONCE = 1024  # bounds the memory beside the result
T = TypeVar("T")


class TextEncoder(Protocol):
    """The text encoder of a model."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Prompts to embeddings [text, dim], float32, of unit length."""
        ...


def prompts(label: str, templates: Sequence[str]) -> list[str]:
    """The prompts of a label, one for each template.

    >>> prompts("tabby cat", ["{}", "a photo of a {}."])
    ['tabby cat', 'a photo of a tabby cat.']
    """
    # Not str.format: labels and templates may contain other braces.
    return [template.replace("{}", label) for template in templates]


def check_templates(templates: Sequence[str]) -> tuple[str, ...]:
    """Validate templates; returns them as a tuple.

    >>> check_templates(["a photo of a cat"])
    Traceback (most recent call last):
    anytimecl.errors.LabelError: A template holds {} once, where the label goes: 'a photo of a cat'.
    """
    if isinstance(templates, str) or not templates:
        raise LabelError(f"Templates come as a list of at least one text, not {templates!r}.")
    for template in templates:
        if not isinstance(template, str) or template.count("{}") != 1:
            raise LabelError(f"A template holds {{}} once, where the label goes: {template!r}.")
    return tuple(templates)


def embed_labels(
    text: TextEncoder,
    cache: LabelCache,
    model: str,  # fingerprint
    dim: int,
    labels: Sequence[str],
    templates: Sequence[str],
) -> Tensor:
    """Unit text embeddings of labels, [label, dim], on the CPU."""
    if isinstance(labels, str):
        raise LabelError(f"Labels come as a list of texts: write [{labels!r}].")
    templates = check_templates(templates)
    cleaned = [clean_label(label, position) for position, label in enumerate(labels)]
    space = hashlib.sha256(json.dumps([model, templates]).encode()).hexdigest()[:32]
    result = torch.empty(len(cleaned), dim)
    step = max(1, PROMPTS_AT_ONCE // len(templates))
    for start in range(0, len(cleaned), step):
        asked = cleaned[start : start + step]
        known = cache.get(space, asked, dim)
        missing = [label for label in dict.fromkeys(asked) if label not in known]
        if missing:
            fresh = dict(zip(missing, _ensemble(text, dim, missing, templates), strict=True))
            cache.put(space, fresh)
            known.update(fresh)
        torch.stack([known[label] for label in asked], out=result[start : start + step])
    return result


@torch.no_grad()
def _ensemble(
    text: TextEncoder, dim: int, labels: Sequence[str], templates: Sequence[str]
) -> Tensor:
    """Normalised mean of the prompts' embeddings over the templates, [label, dim]."""
    vectors = text([prompt for label in labels for prompt in prompts(label, templates)])
    vectors = vectors.detach().float().cpu()
    if vectors.shape != (len(labels) * len(templates), dim) or not vectors.isfinite().all():
        raise ModelError(
            f"The text side gave vectors of shape {tuple(vectors.shape)} for {len(labels)} labels "
            f"in {len(templates)} templates; {dim} finite numbers each were expected."
        )
    return F.normalize(vectors.view(len(labels), len(templates), dim).mean(1), dim=-1)


def cache_folder() -> Path:
    """Folder of this package's caches: $ANYTIMECL_CACHE, or in the user's cache folder."""
    if given := os.environ.get("ANYTIMECL_CACHE"):
        return Path(given).expanduser()
    import platformdirs  # not needed where the variable is set

    return platformdirs.user_cache_path("anytimecl")


class LabelCache:
    """LRU cache of label embeddings in RAM, and more on disk if a file is given.

    Failures of the file are no error: a damaged one is deleted, one that cannot be read or written
    is ignored.
    """

    def __init__(
        self, file: Path | None = None, *, in_ram: int = 20_000, on_disk: int = 100_000
    ) -> None:
        self._file, self._in_ram, self._on_disk = file, in_ram, on_disk
        self._ram: OrderedDict[tuple[str, str], Tensor] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    @classmethod
    def of_user(cls) -> LabelCache:
        """The cache that all processes of this user share."""
        return cls(cache_folder() / "labels.sqlite3")

    def get(self, space: str, labels: Sequence[str], dim: int) -> dict[str, Tensor]:
        """The embeddings [dim] of cached labels."""
        found: dict[str, Tensor] = {}
        with self._lock:
            for label in labels:
                vector = self._ram.get((space, label))
                if vector is not None and len(vector) == dim:
                    self._ram.move_to_end((space, label))
                    found[label] = vector
        missing = [label for label in dict.fromkeys(labels) if label not in found]
        if missing:
            stored = self._read(space, missing, dim)
            self._keep(space, stored)
            found.update(stored)
        return found

    def put(self, space: str, vectors: Mapping[str, Tensor]) -> None:
        """Add unit embeddings [dim]."""
        self._keep(space, vectors)
        rows = [(space, label, _to_bytes(vector)) for label, vector in vectors.items()]

        def write(database: sqlite3.Connection) -> None:
            database.executemany(
                "INSERT OR REPLACE INTO vectors (space, label, vector) VALUES (?, ?, ?)", rows
            )
            # First in, first out: cheap, and bounds the file.
            database.execute(
                "DELETE FROM vectors WHERE id <= (SELECT max(id) FROM vectors) - ?",
                (self._on_disk,),
            )

        self._on_file(write, None)

    def _keep(self, space: str, vectors: Mapping[str, Tensor]) -> None:
        with self._lock:
            for label, vector in vectors.items():
                # A clone: a view would keep the whole batch alive.
                self._ram[space, label] = vector.clone()
                self._ram.move_to_end((space, label))
            while len(self._ram) > self._in_ram:
                self._ram.popitem(last=False)

    def _read(self, space: str, labels: Sequence[str], dim: int) -> dict[str, Tensor]:
        def read(database: sqlite3.Connection) -> dict[str, Tensor]:
            found: dict[str, Tensor] = {}
            for start in range(0, len(labels), 500):  # old versions of SQLite allow 999 values
                some = labels[start : start + 500]
                marks = ",".join("?" * len(some))
                rows = database.execute(
                    f"SELECT label, vector FROM vectors WHERE space = ? AND label IN ({marks})",
                    (space, *some),
                )
                for label, blob in rows:
                    vector = _from_bytes(blob, dim)
                    if vector is not None:
                        found[label] = vector
            return found

        return self._on_file(read, {})

    def _on_file(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Run `work` on the database file; returns `otherwise` if that fails."""
        if self._file is None:
            return otherwise
        for _ in range(2):  # the second time on a new file, if the first was damaged
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                # A new connection each time: none is shared across forks or threads.
                with contextlib.closing(sqlite3.connect(self._file, timeout=1.0)) as database:
                    database.execute("PRAGMA journal_mode = WAL")  # readers beside one writer
                    database.execute(_SCHEMA)
                    with database:
                        return work(database)
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                    return otherwise
                self._drop()
            except OSError:
                return otherwise
        return otherwise

    def _drop(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)


# SQLITE_ERROR: the file is a valid database with another schema.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS vectors (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        space TEXT NOT NULL,  -- the model and the templates
        label TEXT NOT NULL,
        vector BLOB NOT NULL,  -- float32, little-endian
        UNIQUE (space, label)
    )
"""


def _to_bytes(vector: Tensor) -> bytes:
    return vector.detach().cpu().numpy().astype("<f4").tobytes()


def _from_bytes(blob: object, dim: int) -> Tensor | None:
    """None for anything but a unit vector: damaged rows are computed again."""
    if not isinstance(blob, bytes) or len(blob) != 4 * dim:
        return None
    vector = torch.from_numpy(np.frombuffer(blob, "<f4").astype(np.float32))
    return vector if abs(float(vector.norm()) - 1) < 1e-3 else None
