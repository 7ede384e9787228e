"""Learns and predicts folders of images in batches."""

from __future__ import annotations

import hashlib
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TypeVar

from anytimecl.client._told import Answer, FileTaught, ServiceError, Taught
from anytimecl.client._wire import read_file

SUFFIXES = frozenset(
    (
        ".jpg .jpeg .jpe .jfif .png .apng .webp .gif .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .pfm "
        ".avif .avifs .heic .heif .jp2 .jpf .jpx .jpc .j2k .j2c"
    ).split()
)
BATCH_BYTES = 16 << 20  # of files per request: base64 adds a third
PAUSE = 0.5  # seconds before images that were not accepted are sent again
File = tuple[Path, bytes]
Example = tuple[bytes, str, str]  # image, label and key
T = TypeVar("T")
R = TypeVar("R")


def learn_folder(
    learn_many: Callable[[list[Example]], list[Taught]], folder: str | PathLike[str], batch: int
) -> Iterator[FileTaught]:
    """Learn `folder/<label>/<file>`, in the order of names."""
    root = Path(folder)
    if next(_files(root, "*/*"), None) is None and next(_files(root, "*"), None):
        raise ServiceError(f"The images in {root} lie in no folder of their label: make such.")
    for group in _batches(_files(root, "*/*"), batch):
        left: list[tuple[str, Example]] = []
        for path, data in group:
            name, label = path.relative_to(root).as_posix(), _label(path)
            try:
                left.append((name, (data, label, _key(data, label))))
            except UnicodeEncodeError:
                why = "the name of its folder is not UTF-8: rename it"
                yield FileTaught(name, label, "refused", None, why)
        while left:
            told = _in_parts(learn_many, [example for _, example in left], _refused)
            later = []
            for (name, example), one in zip(left, told, strict=True):
                if one.state == "later":
                    later.append((name, example))
                else:
                    yield FileTaught(name, example[1], one.state, one.id, one.detail)
            if len(later) == len(left):
                time.sleep(PAUSE)
            left = later


def predict_folder(
    predict: Callable[[list[bytes]], list[Answer | ServiceError]],
    folder: str | PathLike[str],
    batch: int,
) -> Iterator[tuple[str, Answer | ServiceError]]:
    """Predict every image below the folder, in the order of names."""
    root = Path(folder)
    for group in _batches(_files(root, "**/*"), batch):
        told = _in_parts(predict, [data for _, data in group], lambda error: error)
        for (path, _), one in zip(group, told, strict=True):
            yield path.relative_to(root).as_posix(), one


def _in_parts(
    send: Callable[[list[T]], list[R]], items: list[T], refused: Callable[[ServiceError], R]
) -> list[R]:
    """Send the items; in halves as long as they are too large together."""
    try:
        return send(items)
    except ServiceError as error:
        if error.status != 413:
            raise
        if len(items) == 1:
            return [refused(error)]
    half = len(items) // 2
    return _in_parts(send, items[:half], refused) + _in_parts(send, items[half:], refused)


def _refused(error: ServiceError) -> Taught:
    return Taught("refused", None, str(error))


def _files(root: Path, pattern: str) -> Iterator[File]:
    if not root.is_dir():
        raise ServiceError(f"There is no folder {root}.")
    for path in sorted(root.glob(pattern)):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            yield path, read_file(path)


def _batches(files: Iterable[File], most: int) -> Iterator[list[File]]:
    """Groups with at most this many files and BATCH_BYTES, but at least one file."""
    group: list[File] = []
    for path, data in files:
        size = sum(len(other) for _, other in group) + len(data)
        if group and (len(group) >= most or size > BATCH_BYTES):
            yield group
            group = []
        group.append((path, data))
    if group:
        yield group


def _label(path: Path) -> str:
    return " ".join(unicodedata.normalize("NFC", path.parent.name).split())


def _key(data: bytes, label: str) -> str:
    """The key that `anytimecl learn` and `watch` use."""
    return hashlib.sha256(hashlib.sha256(data).digest() + label.encode()).hexdigest()
