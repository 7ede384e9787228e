"""Import of what `exporting` wrote."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from anytimecl.errors import AnytimeError, StoreError
from anytimecl.memory.checks import check_number
from anytimecl.memory.contract import Progress, Row
from anytimecl.memory.exporting import (
    ABOUT,
    AT_ONCE,
    FORMAT,
    VERSION,
    all_at_once,
    pyarrow_parquet,
    schema,
)
from anytimecl.memory.journal import checked
from anytimecl.memory.keys import Used
from anytimecl.memory.opening import open_memory
from anytimecl.memory.store import Store

Check = Callable[[Row], None]  # raises for a row that may not be imported


class Imported(NamedTuple):
    """Number of new examples, and of those that were there already."""

    new: int
    known: int


@dataclass(frozen=True)
class Export:
    """An export, before its examples are read."""

    folder: Path
    meta: Mapping[str, str]
    examples: int
    last: int  # number of the last event
    events: Sequence[tuple[int, str, dict[str, Any]]]  # of the journal, other than `learn`
    shards: Mapping[str, int]  # file below the folder -> number of examples
    used_keys: Sequence[tuple[bytes, Used]] = ()  # of requests, including forgotten examples


def read_export(folder: Path) -> Export:
    """Read an export's description; StoreError if it is invalid or incomplete."""
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
            [
                (bytes.fromhex(key), Used(int(example), bytes.fromhex(content)))
                for key, example, content in about.get("used_keys", ())
            ],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    check: Check = lambda row: None,
    progress: Progress | None = None,
) -> Imported:
    """Recreate the exported memory, with the same ids, in a new folder, atomically."""
    with all_at_once(Path(to)) as part:
        with open_memory(part, create=export.meta) as store:
            for rows in _rows(export, progress, check):
                with store.writing():
                    for example, row in rows:
                        check_number(example, store.last, "The export")
                        store.last = example - 1  # so that the next number is the same
                        store.add(row)
            with store.writing():
                for entry in export.events:
                    store.journal.write(*checked(*entry))
                for key, used in export.used_keys:
                    store.keys.copy(key, used)
                check_number(export.last, store.last, "The export")
                store.last = max(store.last, export.last)
                store.note("import", {"examples": export.examples})
        beside(part)
    return Imported(export.examples, 0)


def import_into(
    export: Export,
    store: Store,
    *,
    check: Check = lambda row: None,
    progress: Progress | None = None,
) -> Imported:
    """Add the examples to a memory of the same model and codec; skips those imported before.

    Images that are in the memory are skipped as well: their label there may be a correction.
    """
    new, added = 0, set[int | None]()
    for rows in _rows(export, progress, check):
        with store.writing():
            for example, row in rows:
                keyed = row._replace(key=row.key or _key(example, row))
                if store.has_key(keyed.key or "") is not None or _is_there(store, example, row):
                    continue
                if row.content not in added and store.copies(row.content):
                    continue
                store.add(keyed)
                added.add(row.content)
                new += 1
    return Imported(new, export.examples - new)


def _is_there(store: Store, example: int, row: Row) -> bool:
    """Whether the memory has this very example under its id."""
    place = store.records.find(example)
    if place is None or (place.key, place.time) != (row.key, row.time):
        return False
    return place.size == len(row.record) and store.read([example]) == [row.record]


def _key(example: int, row: Row) -> str:
    """A key for an example without one, the same in every import."""
    about = f"{example} {row.label}\0".encode("utf-8", "surrogateescape")
    return f"import {hashlib.sha256(about + row.record).hexdigest()}"


def _rows(
    export: Export, progress: Progress | None, check: Check = lambda row: None
) -> Iterator[list[tuple[int, Row]]]:
    """Batches of examples in order, verified."""
    pq = pyarrow_parquet()
    done = 0
    for name, expected in export.shards.items():
        try:
            with pq.ParquetFile(export.folder / name) as file:
                if file.metadata.num_rows != expected:
                    raise ValueError(f"{file.metadata.num_rows} examples instead of {expected}")
                for batch in file.iter_batches(AT_ONCE):
                    rows = [_row(plain) for plain in _plain(batch)]
                    for example, row in rows:
                        try:
                            check(row)
                        except AnytimeError as error:
                            told = f"{export.folder / name}: example {example}: {error}"
                            raise StoreError(told) from error
                    yield rows
                    done += len(batch)
                    if progress is not None:
                        progress(done, export.examples)
        except AnytimeError:
            raise
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            NotImplementedError,
        ) as error:  # or pyarrow's
            raise StoreError(f"{export.folder / name} is damaged: {error}.") from error


def _plain(batch: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    types = {field.name: field.type for field in schema()} | {"time": pa.int64()}
    columns = {name: batch.column(name) for name in batch.schema.names if name in types}
    cast = {name: column.cast(types[name]) for name, column in columns.items()}
    plain: list[dict[str, Any]] = pa.table(cast).to_pylist()
    return plain


def _row(plain: Mapping[str, Any]) -> tuple[int, Row]:
    record = plain["record"]
    if zlib.crc32(record) != plain["checksum"]:
        raise ValueError(f"the record of example {plain['id']} is not what was exported")
    candidates = plain["candidates"]
    if plain["id"] < 1 or None in (plain["label"], *(candidates or ())):
        raise ValueError(f"example {plain['id']} has no number, label or candidate")
    return int(plain["id"]), Row(
        plain["label"],
        record,
        None if candidates is None else tuple(candidates),
        plain["key"],
        plain["time"],
        plain.get("content"),  # older exports have none of these
        plain.get("source"),
        plain.get("thumbnail"),
    )
