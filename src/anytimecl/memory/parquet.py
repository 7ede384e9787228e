"""A memory as Parquet files that pandas and Hugging Face datasets open, and back without loss.

    DIR/data/train-00000-of-00002.parquet     examples in order of arrival, records as bytes
    DIR/features/features-00000-of-00002.safetensors     what a model sees in them, if asked for
    DIR/memory.json                           what the memory says of itself, and its journal

Shards are bounded in bytes, and one row group at a time is in RAM.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from anytimecl.errors import AnytimeError, StoreError
from anytimecl.memory.contract import Row
from anytimecl.memory.opening import open_memory
from anytimecl.memory.store import Store

FORMAT = "anytimecl memory export"
VERSION = 1
ABOUT = "memory.json"
SHARD_BYTES = 1 << 28  # of records, about
GROUP_BYTES = 1 << 24  # in RAM at once, about
AT_ONCE = 1000  # examples at most in one row group, or in one transaction

Progress = Callable[[int, int], None]  # done, of how many
Features = Callable[[Sequence[bytes]], Mapping[str, Tensor]]  # of records, [record, ...] each


class Imported(NamedTuple):
    """How many examples are new, and how many were there already."""

    new: int
    known: int


@dataclass(frozen=True)
class Export:
    """What is known of an export before its examples are read."""

    folder: Path
    meta: Mapping[str, str]
    examples: int
    last: int  # number of the last event
    events: Sequence[tuple[int, str, dict[str, Any]]]  # that learning repeats, besides examples
    shards: Mapping[str, int]  # file below the folder -> examples in it


# Out


def export_memory(
    store: Store,
    to: Path,
    *,
    features: Features | None = None,
    beside: Callable[[Path], None] = lambda folder: None,
    progress: Progress | None = None,
) -> int:
    """Write the memory into the new folder `to`, which appears all at once; returns how many.

    The examples are those of one moment; others may write meanwhile. `beside` may add files.
    """
    _pyarrow()
    with _all_at_once(Path(to)) as part:
        (part / "data").mkdir()
        with store.reading():
            count = _write(store, part, features, progress)
        beside(part)
    return count


@contextmanager
def _all_at_once(to: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `to` in the end."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StoreError(f"{to} is there already: choose a new folder.")
    part = to.with_name(f".{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    try:
        part.mkdir(parents=True)
        yield part
        if to.exists():
            to.rmdir()
        os.replace(part, to)
    except OSError as error:
        raise StoreError(f"{to} could not be written: {error}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(store: Store, part: Path, features: Features | None, progress: Progress | None) -> int:
    ids = store.all_ids()
    size = int(store.db.execute("SELECT coalesce(sum(size), 0) FROM example").fetchone()[0])
    mean = max(1, size // max(1, len(ids)))
    group = max(1, min(AT_ONCE, GROUP_BYTES // mean))
    shard = max(1, SHARD_BYTES // mean // group) * group
    total = max(1, -(-len(ids) // shard))
    shards: dict[str, int] = {}
    done = 0
    for number in range(total):
        mine = ids[number * shard : (number + 1) * shard]
        name = f"data/train-{number:05d}-of-{total:05d}.parquet"
        shards[name] = 0
        seen: list[Mapping[str, Any]] = []
        with _Writer(part / name, store.meta) as writer:
            for start in range(0, max(1, len(mine)), group):
                rows = store.rows(mine[start : start + group])
                writer.write(rows)
                if features is not None and rows:
                    seen.append(_looked(rows, features))
                shards[name] += len(rows)
                done += len(mine[start : start + group])
                if progress is not None:
                    progress(done, len(ids))
        if seen:
            _write_features(part, f"{number:05d}-of-{total:05d}", seen)
    kinds = ("evict", "forget")  # whose examples are not here anyway
    events = [list(event) for event in store.journal.sound() if event.kind not in kinds]
    about = {
        "format": FORMAT,
        "version": VERSION,
        "meta": dict(store.meta),
        "last": store.journal.last(),
        "events": events,
        "shards": shards,
    }
    (part / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
    return sum(shards.values())


class _Writer:
    """One Parquet file."""

    def __init__(self, path: Path, meta: Mapping[str, str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._codec = json.loads(meta.get("settings", "{}")).get("codec")
        self._schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("label", pa.string(), nullable=False),
                pa.field("candidates", pa.list_(pa.string())),
                pa.field("key", pa.string()),
                pa.field("time", pa.timestamp("ms", tz="UTC")),
                pa.field("codec", pa.string()),
                pa.field("checksum", pa.int64(), nullable=False),  # crc32 of the record
                pa.field("record", pa.binary(), nullable=False),
            ]
        )
        names = [name for name in self._schema.names if name != "record"]
        squeezed = dict.fromkeys(names, "zstd") | {"record": "none"}  # codecs squeeze already
        texts = ["label", "candidates.list.element", "codec"]
        self._file = pq.ParquetWriter(
            path, self._schema, compression=squeezed, use_dictionary=texts
        )

    def write(self, rows: Sequence[tuple[int, Row]]) -> None:
        """One row group."""
        import pyarrow as pa

        if not rows:
            return
        columns = [
            [example for example, _ in rows],
            [row.label for _, row in rows],
            [None if row.candidates is None else list(row.candidates) for _, row in rows],
            [row.key for _, row in rows],
            [row.time for _, row in rows],
            [self._codec] * len(rows),
            [zlib.crc32(row.record) for _, row in rows],
            [row.record for _, row in rows],
        ]
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        self._file.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _looked(rows: Sequence[tuple[int, Row]], features: Features) -> dict[str, Tensor]:
    import torch

    made = features([row.record for _, row in rows])
    return {"id": torch.tensor([example for example, _ in rows])} | {
        name: value.cpu().contiguous() for name, value in made.items()
    }


def _write_features(part: Path, which: str, seen: Sequence[Mapping[str, Any]]) -> None:
    import torch

    (part / "features").mkdir(exist_ok=True)
    whole = {name: torch.cat([each[name] for each in seen]) for name in seen[0]}
    save_file(whole, part / "features" / f"features-{which}.safetensors")


# In


def read_export(folder: Path) -> Export:
    """What an export says of itself; StoreError if it is none, or not whole."""
    folder = Path(folder)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise KeyError(about["format"])
        if about["version"] != VERSION:
            raise StoreError(
                f"The export in {folder} has version {about['version']}, and this anytimecl reads "
                f"{VERSION}: use the anytimecl that wrote it."
            )
        export = Export(
            folder,
            dict(about["meta"]),
            sum(about["shards"].values()),
            int(about["last"]),
            [(int(number), str(kind), dict(data)) for number, kind, data in about["events"]],
            dict(about["shards"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"There is no export of a memory in {folder}.") from error
    for name in export.shards:
        if not (folder / name).is_file():
            raise StoreError(f"The export in {folder} is not whole: {name} is missing.")
    return export


def import_new(
    export: Export,
    to: Path,
    *,
    beside: Callable[[Path], None] = lambda folder: None,
    progress: Progress | None = None,
) -> Imported:
    """The memory that was exported, under the same numbers, in a new folder, all at once."""
    with _all_at_once(Path(to)) as part:
        with open_memory(part, create=export.meta) as store:
            for rows in _rows(export, progress):
                with store.writing():
                    for example, row in rows:
                        store.last = example - 1  # so that the next number is the same
                        store.add(row)
            with store.writing():
                for number, kind, data in export.events:
                    store.journal.write(number, kind, data)
                store.last = max(store.last, export.last)
                store.note("import", {"examples": export.examples})
        beside(part)
    return Imported(export.examples, 0)


def import_into(export: Export, store: Store, *, progress: Progress | None = None) -> Imported:
    """Add the examples to a memory of the same kind; what was imported before is passed over."""
    new = 0
    for rows in _rows(export, progress):
        with store.writing():
            for example, row in rows:
                keyed = row._replace(key=row.key or _key(example, row))
                if not _is_there(store, example, row) and store.has_key(keyed.key or "") is None:
                    store.add(keyed)
                    new += 1
    return Imported(new, export.examples - new)


def _is_there(store: Store, example: int, row: Row) -> bool:
    """Whether it is the same memory's own example, under its own number."""
    place = store.records.find(example)
    if place is None or (place.key, place.time) != (row.key, row.time):
        return False
    return place.size == len(row.record) and store.read([example]) == [row.record]


def _key(example: int, row: Row) -> str:
    """For an example that has none: the same one has the same key the next time."""
    about = f"{example} {row.label}\0".encode("utf-8", "surrogateescape")
    return f"import {hashlib.sha256(about + row.record).hexdigest()}"


def _rows(export: Export, progress: Progress | None) -> Iterator[list[tuple[int, Row]]]:
    """The examples in order, some at a time, each checked."""
    pq = _pyarrow()
    done = 0
    for name, expected in export.shards.items():
        try:
            with pq.ParquetFile(export.folder / name) as file:
                if file.metadata.num_rows != expected:
                    raise ValueError(f"{file.metadata.num_rows} examples instead of {expected}")
                for batch in file.iter_batches(AT_ONCE):
                    yield [_row(plain) for plain in _plain(batch)]
                    done += len(batch)
                    if progress is not None:
                        progress(done, export.examples)
        except AnytimeError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:  # pyarrow's own are of these
            raise StoreError(f"{export.folder / name} is damaged: {error}.") from error


def _plain(batch: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    at = batch.schema.get_field_index("time")
    plain: list[dict[str, Any]] = batch.set_column(
        at, "time", batch.column("time").cast(pa.int64())
    ).to_pylist()
    return plain


def _row(plain: Mapping[str, Any]) -> tuple[int, Row]:
    record = plain["record"]
    if zlib.crc32(record) != plain["checksum"]:
        raise ValueError(f"the record of example {plain['id']} is not what was exported")
    candidates = plain["candidates"]
    return int(plain["id"]), Row(
        plain["label"],
        record,
        None if candidates is None else tuple(candidates),
        plain["key"],
        plain["time"],
    )


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise StoreError(
            "Parquet files need pyarrow: install it with pip install 'anytimecl[export]'."
        ) from error
    return pyarrow.parquet
