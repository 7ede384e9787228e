"""A folder in which images are encoded block by block, resumable after interruptions.

DIR/job.json                   what is encoded, with which model and settings
DIR/plan.jsonl                 the blocks, one line each, as the source was listed at first
DIR/data/block-000000.parquet  the records of a block, whole or not there
DIR/memory.json                written last: from then on `memory import` reads the folder
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from anytimecl.backbone import Backbone
from anytimecl.errors import StoreError
from anytimecl.files import DRAFT, replacing
from anytimecl.memory.exporting import ABOUT
from anytimecl.scale.encoding.sources import Reading, Source, open_source
from anytimecl.settings import Settings

FORMAT, VERSION = "anytimecl encoding", 1
JOB, PLAN, DATA = "job.json", "plan.jsonl", "data"
BLOCK = 256  # images that are lost, at most, with the process that encodes them


class BlockPlace(NamedTuple):
    """Position of a block in the plan."""

    number: int
    images: int
    offset: int  # byte of its line


@dataclass(frozen=True)
class EncodingJob:
    """What a job encodes, and how."""

    folder: Path
    source: str
    reading: Reading
    meta: Mapping[str, str]  # of the memory that it is for: settings, spec, fingerprint
    block: int = BLOCK
    limit: int | None = None

    @property
    def settings(self) -> Settings:
        """Settings of the target memory."""
        return Settings.from_json(self.meta["settings"])

    @property
    def whole(self) -> bool:
        """Whether the job is complete."""
        return (self.folder / ABOUT).exists()

    def open_source(self) -> Source:
        """Open the source of the images."""
        return open_source(self.source, self.reading)

    def file(self, number: int) -> Path:
        """File of a block's records."""
        return self.folder / DATA / f"block-{number:06d}.parquet"

    def places(self) -> list[BlockPlace]:
        """All blocks of the plan."""
        found, offset = [], 0
        with (self.folder / PLAN).open("rb") as file:
            for number, line in enumerate(file):
                found.append(BlockPlace(number, int(json.loads(line)[0]), offset))
                offset += len(line)
        return found

    def block_at(self, place: BlockPlace) -> Any:
        """The source's references to the images of a block."""
        with (self.folder / PLAN).open("rb") as file:
            file.seek(place.offset)
            return json.loads(file.readline())[1]

    def to_json(self) -> dict[str, Any]:
        """The form that is stored in the folder."""
        told = dataclasses.asdict(self)
        del told["folder"]  # it may be moved
        return {"format": FORMAT, "version": VERSION, **told}


def memory_meta(backbone: Backbone, settings: Settings) -> dict[str, str]:
    """Metadata of a memory of this model."""
    return {
        "settings": settings.to_json(),
        "spec": json.dumps(backbone.spec.to_dict()),
        "fingerprint": backbone.spec.fingerprint,
    }


def begun(wanted: EncodingJob) -> EncodingJob:
    """Start the job of a folder, or resume it.

    Raises
    ------
    StoreError
        If the folder holds another job, or something else.
    """
    folder = wanted.folder
    if not (folder / JOB).exists():
        if folder.exists() and not _is_beginning(folder):
            raise StoreError(f"{folder} holds something else: choose a new folder.")
        (folder / DATA).mkdir(parents=True, exist_ok=True)
        _begin(wanted)
    return _agreed(load(folder), wanted)


def _begin(job: EncodingJob) -> None:
    """Write the plan, then the job, unless another process has meanwhile.

    Listing a source takes long, and the command may have been started twice.
    """
    file = job.folder / JOB
    with suppress(_BegunElsewhere):
        _write_plan(job)
        with replacing(file, alone=False) as draft:
            draft.write_text(json.dumps(job.to_json(), indent=1), encoding="utf-8")
    for left in job.folder.glob(f".{PLAN}*{DRAFT}"):  # by whoever was killed, or was slower
        left.unlink(missing_ok=True)


class _BegunElsewhere(Exception):
    """Another process has written the plan."""


def _is_beginning(folder: Path) -> bool:
    """Whether the folder has nothing but the remains of an interrupted listing."""
    if not folder.is_dir():
        return False
    for inside in folder.iterdir():
        draft = inside.name.startswith((f".{PLAN}.", f".{JOB}.")) and inside.name.endswith(DRAFT)
        if not draft and inside.name not in (DATA, PLAN):
            return False
    return not (folder / DATA).exists() or not any((folder / DATA).iterdir())


def load(folder: Path) -> EncodingJob:
    """The job of a folder."""
    try:
        told = json.loads((folder / JOB).read_text(encoding="utf-8"))
        if told["format"] != FORMAT or told["version"] != VERSION:
            raise ValueError(f"{told['format']}, version {told['version']}")
        reading = told["reading"]
        classes = None if reading["classes"] is None else tuple(reading["classes"])
        return EncodingJob(
            folder,
            told["source"],
            Reading(**{**reading, "classes": classes}),
            told["meta"],
            told["block"],
            told["limit"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{folder / JOB} is of no encoding that is known here: {error}") from error


def _agreed(found: EncodingJob, wanted: EncodingJob) -> EncodingJob:
    mine, theirs = found.to_json(), wanted.to_json()
    other = [name for name in mine if mine[name] != theirs[name]]
    if other:
        told = ", ".join(f"{name} ({str(mine[name])[:80]})" for name in other)
        raise StoreError(
            f"{found.folder} was begun with another {told}. Go on with that, or choose a new "
            "folder."
        )
    return found


def _write_plan(job: EncodingJob) -> None:
    left = math.inf if job.limit is None else job.limit
    with replacing(job.folder / PLAN, alone=False) as draft:
        with draft.open("wb") as file:
            for count, what in job.open_source().blocks(job.block):
                if left <= 0:
                    break
                # The last of them may be cut short when it is read.
                file.write(json.dumps([min(count, left), what]).encode() + b"\n")
                left -= count
            if not file.tell():
                raise StoreError(f"There are no images in {job.source}.")
        if (job.folder / JOB).exists():
            raise _BegunElsewhere
