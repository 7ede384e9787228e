"""Encoding of a block of images to the records that `learn` would store, bit for bit."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from anytimecl.backbone import load_stored
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import AnytimeError, ImageError, LabelError
from anytimecl.files import replacing
from anytimecl.images import load_image
from anytimecl.labels import teachable
from anytimecl.memory.contract import Row
from anytimecl.memory.exporting import as_table, pyarrow_parquet, squeezed
from anytimecl.recording import Record
from anytimecl.scale.encoding.job import BlockPlace, EncodingJob
from anytimecl.scale.encoding.sources import Picture

FAILURES = b"anytimecl.failures"  # in the metadata of a block: why images are not in it


class Done(NamedTuple):
    """Result of encoding a block."""

    number: int
    images: int
    failures: int
    seconds: float  # of CPU time that it took


class _Ready(NamedTuple):
    name: str
    label: str
    file: bytes
    image: Image.Image


class BlockEncoder:
    """Encodes the blocks of a job with batches of `batch` images.

    A batch of 1 on a CPU gives exactly the records of `learn`. Larger ones are faster on a GPU, and
    may differ in the last bits.
    """

    def __init__(self, job: EncodingJob, *, device: str = "cpu", batch: int = 1) -> None:
        self._job, self._batch = job, batch
        self._source = job.open_source()
        backbone = load_stored(job.meta, device=device)
        if backbone.spec.fingerprint != job.meta["fingerprint"]:
            raise AnytimeError(
                f"The model {backbone.spec.name} is another one here than where {job.folder} was "
                "begun: use the same on every machine."
            )
        self._classifier = AnytimeClassifier.open(model=backbone, settings=job.settings)

    def __call__(self, place: BlockPlace) -> Done:
        """Encode a block and write it atomically."""
        began = time.process_time()
        rows: list[Row] = []
        failures: list[str] = []
        pictures = islice(self._source.read(self._job.block_at(place)), place.images)
        seen = 0
        while some := list(islice(pictures, self._batch)):
            seen += len(some)
            for made in self._rows(some):
                if isinstance(made, str):
                    failures.append(made)
                else:
                    rows.append(made)
        for lost in range(seen, place.images):
            told = f"block {place.number}, image {lost}"
            failures.append(f"{told}: the source has it no more, and had it when it was listed")
        file = self._job.file(place.number)
        if not file.exists():  # else another did it while this one was slow: it may be numbered
            write(file, list(enumerate(rows, 1)), self._job, failures)
        return Done(place.number, len(rows), len(failures), time.process_time() - began)

    def _rows(self, pictures: list[Picture]) -> Iterator[Row | str]:
        """A row for each image, or its error message."""
        checked = [_checked(picture) for picture in pictures]
        records = iter(self._records([one for one in checked if isinstance(one, _Ready)]))
        for one in checked:
            if isinstance(one, str):
                yield one
                continue
            record, now = next(records), int(time.time() * 1000)
            key = key_of(one.file, one.label)
            yield Row(one.label, record.data, None, key, now, record.content, one.name)

    def _records(self, ready: list[_Ready]) -> list[Record]:
        if self._classifier.settings.name_of("codec") == "image":
            return [self._classifier._record(one.file) for one in ready]
        if len(ready) < 2:
            return [self._classifier._record(one.image) for one in ready]
        tokens = self._classifier.encode([one.image for one in ready])
        return [self._classifier._compressed(one) for one in tokens]


def key_of(data: bytes, label: str) -> str:
    """The key that `learn` would use for a file, so that it skips what was imported."""
    return hashlib.sha256(hashlib.sha256(data).digest() + label.encode()).hexdigest()


def _checked(picture: Picture) -> _Ready | str:
    """A usable image, or its error message."""
    try:
        if picture.label is None:
            raise LabelError("it has no label")
        if isinstance(picture.data, ImageError):
            raise picture.data
        label, image = teachable(picture.label), load_image(picture.data)
        return _Ready(picture.name, label, picture.data, image)
    except (ImageError, LabelError) as error:
        return f"{picture.name}: {error}"


def write(file: Path, rows: list[tuple[int, Row]], job: EncodingJob, failures: list[str]) -> None:
    """Write the records of a block, with failures in its metadata."""
    put(file, as_table(rows, job.settings.name_of("codec")), failures)


def put(file: Path, table: Any, failures: list[str]) -> None:
    """Write a block's file atomically.

    The temporary name is unique, since another process may write the same block: Ray retries if a
    node is unreachable, and the command may have been started twice.
    """
    noted = {**(table.schema.metadata or {}), FAILURES: json.dumps(failures).encode()}
    with replacing(file, alone=False) as draft:
        pq = pyarrow_parquet()
        pq.write_table(table.replace_schema_metadata(noted), draft, **squeezed())
