"""Completion of a job: consecutive numbers, without duplicates, as a folder to import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anytimecl.errors import AnytimeError, StoreError
from anytimecl.files import DRAFT, replacing
from anytimecl.memory.exporting import ABOUT, FORMAT, VERSION, pyarrow_parquet
from anytimecl.scale.encoding.blocks import FAILURES, put
from anytimecl.scale.encoding.job import DATA, EncodingJob


class Summary(NamedTuple):
    """Counts of a job's images."""

    examples: int
    repeated: int  # the same image with the same label as one before it
    failures: list[str]


def finish(job: EncodingJob) -> Summary:
    """Turn a job with all its blocks into an export; idempotent."""
    files = [job.file(place.number) for place in job.places()]
    lost = [file.name for file in files if not file.exists()]
    if lost:
        raise StoreError(
            f"{len(lost):,} blocks are not in {job.folder} ({lost[0]}, ...): it must be a folder "
            "that every machine reaches. The same command encodes what is missing."
        )
    twice = _repeated(files)
    shards: dict[str, int] = {}
    failures: list[str] = []
    seen: dict[int, str] = {}
    number = 0
    for file in files:
        table = pyarrow_parquet().read_table(file)
        kept, refused = _renumbered(table, number, twice, seen)
        told = json.loads(table.schema.metadata[FAILURES]) + refused
        failures += told
        number += kept.num_rows
        if not kept.equals(table):
            put(file, kept, told)
        if kept.num_rows:
            shards[f"{DATA}/{file.name}"] = kept.num_rows
    if not number:
        raise AnytimeError(f"No image of {job.source} could be used: {failures[0]}")
    _describe(job, number, shards)
    for left in (job.folder / DATA).glob(f".*{DRAFT}"):  # by whoever was killed
        left.unlink(missing_ok=True)
    listed = sum(place.images for place in job.places())
    return Summary(number, listed - number - len(failures), failures)


def _repeated(files: list[Path]) -> NDArray[np.int64]:
    """Digests of images that occur twice; holds all digests in RAM."""
    pq = pyarrow_parquet()
    parts = [
        pq.read_table(file, columns=["content"]).column("content").to_numpy() for file in files
    ]
    found, count = np.unique(np.concatenate(parts).astype(np.int64), return_counts=True)
    return np.asarray(found[count > 1], dtype=np.int64)


def _renumbered(
    table: Any, number: int, twice: NDArray[np.int64], seen: dict[int, str]
) -> tuple[Any, list[str]]:
    """Rows of new images, numbered from `number`, and messages about refused ones.

    An image has one label, the first one.
    """
    import pyarrow as pa

    contents = table.column("content").to_numpy().astype(np.int64)
    again = set(np.flatnonzero(np.isin(contents, twice)).tolist())
    own, refused = [], []
    for place in range(table.num_rows):
        if place in again:
            label, content = table.column("label")[place].as_py(), int(contents[place])
            if content in seen:
                if seen[content] != label:
                    source = table.column("source")[place].as_py()
                    refused.append(
                        f"{source}: the same image came as {seen[content]!r} before, and an image "
                        "has one label: remove one of the two"
                    )
                continue
            seen[content] = label
        own.append(place)
    kept = table if len(own) == table.num_rows else table.take(pa.array(own, pa.int64()))
    ids = pa.array(range(number + 1, number + len(own) + 1), pa.int64())
    return kept.set_column(0, table.schema.field("id"), ids), refused


def _describe(job: EncodingJob, examples: int, shards: dict[str, int]) -> None:
    about = {
        "format": FORMAT,
        "version": VERSION,
        "meta": dict(job.meta),
        "last": examples,
        "events": [],
        "shards": shards,
    }
    with replacing(job.folder / ABOUT, alone=False) as draft:
        draft.write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
