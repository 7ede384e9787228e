"""Export of a memory's labels as CSV, JSON Lines or folders of images."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from anytimecl.codec import ImageBytes
from anytimecl.errors import ImageError, StoreError
from anytimecl.files import replacing
from anytimecl.images import ImageRef, image_cost
from anytimecl.memory import Row
from anytimecl.memory.contract import Progress
from anytimecl.review import when

if TYPE_CHECKING:
    from anytimecl.classifier import AnytimeClassifier

Format = Literal["csv", "jsonl", "folders"]
COLUMNS = ("id", "label", "source", "time")
AT_ONCE = 256
LONGEST, MOST_BYTES = 100, 200  # characters and bytes of the name of a folder or file
_UNSAFE = re.compile(r'[\x00-\x1f/\\:*?"<>|]')  # in a name, on some system


class Exported(NamedTuple):
    """Number of exported examples, and of those without an image (folders only)."""

    examples: int
    without_image: int = 0


def export_labels(
    clf: AnytimeClassifier,
    path: str | Path,
    format: Format = "csv",  # noqa: A002
    progress: Progress | None = None,
) -> Exported:
    """Write every label of the memory.

    Parameters
    ----------
    path
        A file or a new folder, written atomically.
    format
        "csv" and "jsonl" have a line for each example: id, label, source, time (UTC). "folders" has
        an image for each, `<label>/<id>-<name>`: the source file if it still exists, else the image
        in the memory, else the thumbnail. Labels that would share a folder are numbered: `a_b (2)`.
    """
    write = {"csv": _csv, "jsonl": _json_lines, "folders": _folders}.get(format)
    if write is None:
        raise ValueError(f'The format is "csv", "jsonl" or "folders", not {format!r}.')
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise StoreError(f"{path} is a pipe or a device: name a file.")
    if path.is_dir() and (format != "folders" or any(path.iterdir())):
        raise StoreError(f"{path} is a folder that is there already: choose another name.")
    if not path.parent.is_dir():
        why = f"the folder {path.parent} is not there: make it first"
        raise StoreError(f"{path} could not be written: {why}.")
    try:
        with replacing(path.resolve()) as draft:  # a link stays one
            return write(clf, draft, progress)
    except OSError as error:
        raise StoreError(f"{path} could not be written: {error.strerror or error}.") from error


def _csv(clf: AnytimeClassifier, to: Path, progress: Progress | None) -> Exported:
    with to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        count = 0
        for line in _lines(clf, progress):
            writer.writerow(line)
            count += 1
    return Exported(count)


def _json_lines(clf: AnytimeClassifier, to: Path, progress: Progress | None) -> Exported:
    with to.open("w", encoding="utf-8") as file:
        count = 0
        for line in _lines(clf, progress):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return Exported(count)


def _folders(clf: AnytimeClassifier, to: Path, progress: Progress | None) -> Exported:
    to.mkdir()
    kept = clf.settings.name_of("codec") == ImageBytes.name
    count = missing = 0
    made: dict[str, Path] = {}  # by label
    for example, row in _rows(clf, progress):
        if row.label not in made:
            made[row.label] = _new_folder(to, folder_name(row.label))
        if _put(made[row.label], example, row, kept=kept):
            count += 1
        else:
            missing += 1
    return Exported(count, missing)


def _new_folder(to: Path, name: str) -> Path:
    """A folder of that name; numbered if another label has it, in the eyes of the file system."""
    folder, number = to / name, 1
    while folder.exists():
        number += 1
        folder = to / f"{name} ({number})"
    folder.mkdir()
    return folder


def _put(folder: Path, example: int, row: Row, *, kept: bool) -> bool:
    """Write the example's image; returns False if there is none."""
    source = None if row.source is None else Path(row.source)
    name = "image" if source is None else _short(_UNSAFE.sub("_", source.name), end=True)
    file = None if source is None else _image_in(source)
    if file is None and kept:
        [file] = ImageBytes().images([row.record])
    if file is not None:
        (folder / f"{example}-{name}").write_bytes(file)
    elif row.thumbnail is not None:
        (folder / f"{example}-{Path(name).stem}.webp").write_bytes(row.thumbnail)
    else:
        return False
    return True


def _image_in(source: Path) -> bytes | None:
    """The file if it is an image: a remote client chose `source`, and may name any local file."""
    try:
        file = ImageRef(source.name, label=None, split=None, root=source.parent).read()
        image_cost(file)
    except (ImageError, OSError, ValueError):
        return None
    return file


def folder_name(label: str) -> str:
    """A label as a folder name that is valid on any system.

    >>> folder_name("cat/dog: which?"), folder_name("..")
    ('cat_dog_ which_', '_')
    """
    return _short(_UNSAFE.sub("_", label).strip(" .")).rstrip(" .") or "_"


def _short(name: str, *, end: bool = False) -> str:
    """The beginning of a name, or its end, as long as any file system takes."""
    name = name[-LONGEST:] if end else name[:LONGEST]
    while len(name.encode()) > MOST_BYTES:
        name = name[1:] if end else name[:-1]
    return name


def _lines(clf: AnytimeClassifier, progress: Progress | None) -> Iterator[dict[str, Any]]:
    for example, row in _rows(clf, progress):
        time = when(row.time)
        told = (example, row.label, row.source, time and time.isoformat(timespec="milliseconds"))
        yield dict(zip(COLUMNS, told, strict=True))


def _rows(clf: AnytimeClassifier, progress: Progress | None) -> Iterator[tuple[int, Row]]:
    ids = [example for example, _ in clf.memory.ids()]
    for start in range(0, len(ids), AT_ONCE):
        yield from clf.memory.rows(ids[start : start + AT_ONCE])
        if progress is not None:
            progress(min(start + AT_ONCE, len(ids)), len(ids))
