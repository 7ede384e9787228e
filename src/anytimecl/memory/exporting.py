"""Lossless export of a memory as Parquet files, for pandas and Hugging Face datasets.

    DIR/data/train-00000-of-00002.parquet     examples in order of arrival, records as bytes
    DIR/features/features-00000.safetensors   features of the examples, if asked for
    DIR/memory.json                           metadata and journal

Shards are bounded in bytes, and one row group at a time is in RAM.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from anytimecl.errors import StoreError
from anytimecl.files import replacing
from anytimecl.memory.contract import Progress, Row
from anytimecl.memory.store import Store
from anytimecl.memory.verification import snapshot

FORMAT = "anytimecl memory export"
VERSION = 1
ABOUT = "memory.json"
SHARD_BYTES = 1 << 28  # of records, about
GROUP_BYTES = 1 << 24  # in RAM at once, about
AT_ONCE = 1000  # examples at most in a row group or transaction

Features = Callable[[Sequence[bytes]], Mapping[str, Tensor]]  # of records, [record, ...] each


def export_memory(
    store: Store,
    to: Path,
    *,
    features: Features | None = None,
    beside: Callable[[Path], None] = lambda folder: None,
    progress: Progress | None = None,
) -> int:
    """Export a snapshot into the new folder `to`, atomically; returns the number of examples.

    Others may write meanwhile. `beside` may add files.
    """
    pyarrow_parquet()
    with all_at_once(Path(to)) as part:
        (part / "data").mkdir()
        with snapshot(store) as view:
            count = _write(view, part, features, progress)
        beside(part)
    return count


@contextmanager
def all_at_once(to: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `to` at the end."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StoreError(f"{to} is there already: choose a new folder.")
    try:
        with replacing(to) as draft:
            draft.mkdir(parents=True)
            yield draft
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{to} could not be written: {error}.") from error


def _write(store: Store, part: Path, features: Features | None, progress: Progress | None) -> int:
    ids = store.all_ids()
    size = int(store.db.execute("SELECT coalesce(sum(size), 0) FROM example").fetchone()[0])
    mean = max(1, size // max(1, len(ids)))
    group = max(1, min(AT_ONCE, GROUP_BYTES // mean))
    shard = max(1, SHARD_BYTES // mean // group) * group
    total = max(1, -(-len(ids) // shard))
    shards: dict[str, int] = {}
    looked = _Features(part / "features", features)
    done = 0
    for number in range(total):
        mine = ids[number * shard : (number + 1) * shard]
        name = f"data/train-{number:05d}-of-{total:05d}.parquet"
        shards[name] = 0
        with _Writer(part / name, store.meta) as writer:
            for start in range(0, len(mine), group):
                rows = store.rows(mine[start : start + group])
                writer.write(rows)
                looked.add(rows)
                shards[name] += len(rows)
                done += len(mine[start : start + group])
                if progress is not None:
                    progress(done, len(ids))
    looked.write()
    kinds = ("evict", "forget")  # their examples are not exported
    events = [list(event) for event in store.journal.sound() if event.kind not in kinds]
    keys = store.keys.rows()
    about = {
        "format": FORMAT,
        "version": VERSION,
        "meta": dict(store.meta),
        "last": store.journal.last(),
        "events": events,
        "used_keys": [[key.hex(), used.example, used.content.hex()] for key, used in keys],
        "shards": shards,
    }
    (part / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
    return sum(shards.values())


def as_table(rows: Sequence[tuple[int, Row]], codec: str | None) -> Any:
    """Examples by id as a pyarrow table."""
    import pyarrow as pa

    columns = [
        [example for example, _ in rows],
        [row.label for _, row in rows],
        [None if row.candidates is None else list(row.candidates) for _, row in rows],
        [row.key for _, row in rows],
        [row.time for _, row in rows],
        [codec] * len(rows),
        [zlib.crc32(row.record) for _, row in rows],
        [row.record for _, row in rows],
        [row.content for _, row in rows],
        [row.source for _, row in rows],
        [row.thumbnail for _, row in rows],
    ]
    fields = schema()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=fields)


def schema() -> Any:
    """The columns of a Parquet file."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("label", pa.string(), nullable=False),
            pa.field("candidates", pa.list_(pa.string())),
            pa.field("key", pa.string()),
            pa.field("time", pa.timestamp("ms", tz="UTC")),
            pa.field("codec", pa.string()),
            pa.field("checksum", pa.int64(), nullable=False),  # crc32 of the record
            pa.field("record", pa.binary(), nullable=False),
            pa.field("content", pa.int64()),  # digest of the image's tokens
            pa.field("source", pa.string()),  # name where it comes from
            pa.field("thumbnail", pa.binary()),  # WebP file
        ]
    )


def squeezed() -> dict[str, Any]:
    """Compression options: all columns but the records, which codecs have compressed."""
    names = [name for name in schema().names if name != "record"]
    texts = ["label", "candidates.list.element", "codec"]
    return {
        "compression": dict.fromkeys(names, "zstd") | {"record": "none"},
        "use_dictionary": texts,
    }


class _Writer:
    """Writes one Parquet file."""

    def __init__(self, path: Path, meta: Mapping[str, str]) -> None:
        import pyarrow.parquet as pq

        codec = json.loads(meta.get("settings", "{}")).get("codec")
        # A codec with options is stored as an object, which one column cannot mix with names.
        self._codec = codec if isinstance(codec, str | None) else json.dumps(codec)
        self._file = pq.ParquetWriter(path, schema(), **squeezed())

    def write(self, rows: Sequence[tuple[int, Row]]) -> None:
        """Write a row group."""
        if rows:
            self._file.write_table(as_table(rows, self._codec))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


class _Features:
    """Writes features of examples, in files of bounded size."""

    def __init__(self, folder: Path, look: Features | None) -> None:
        self._folder, self._look = folder, look
        self._parts: list[dict[str, Tensor]] = []
        self._files = 0

    def add(self, rows: Sequence[tuple[int, Row]]) -> None:
        """Add the next examples."""
        if self._look is None or not rows:
            return
        seen = self._look([row.record for _, row in rows])
        part = {"id": torch.tensor([example for example, _ in rows])}
        self._parts.append(part | {name: value.cpu() for name, value in seen.items()})
        if sum(value.nbytes for part in self._parts for value in part.values()) >= SHARD_BYTES:
            self.write()

    def write(self) -> None:
        """Write what was added since the last file."""
        if not self._parts:
            return
        self._folder.mkdir(exist_ok=True)
        whole = {name: torch.cat([p[name] for p in self._parts]) for name in self._parts[0]}
        save_file(whole, self._folder / f"features-{self._files:05d}.safetensors")
        self._files += 1
        self._parts.clear()


def pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise StoreError(
            "Parquet files need pyarrow: pip install -c constraints.txt '.[export]'"
        ) from error
    return pyarrow.parquet
