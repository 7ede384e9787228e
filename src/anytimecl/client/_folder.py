"""Learns and predicts folders of images in batches."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from anytimecl.client._told import Answer, FileTaught, ServiceError, Taught

SUFFIXES = frozenset(
    (
        ".jpg .jpeg .jpe .jfif .png .apng .webp .gif .bmp .dib .tif .tiff .ppm .pgm .pbm .pnm .pfm "
        ".avif .avifs .heic .heif .jp2 .jpf .jpx .jpc .j2k .j2c"
    ).split()
)
BATCH_BYTES = 16 << 20  # of files per request: base64 adds a third
PAUSE = 0.5  # seconds before images that were not accepted are sent again
File = tuple[Path, bytes]
LearnMany = Callable[[Sequence[tuple[bytes, str, str]]], list[Taught]]


def learn_folder(
    learn_many: LearnMany, folder: str | PathLike[str], batch: int
) -> Iterator[FileTaught]:
    """Learn `folder/<label>/<file>`, in the order of names."""
    root = Path(folder)
    if next(_files(root, "*/*"), None) is None and next(_files(root, "*"), None):
        raise ServiceError(f"The images in {root} lie in no folder of their label: make such.")
    for group in _batches(_files(root, "*/*"), batch):
        left = [(path, _lesson(path, data)) for path, data in group]
        while left:
            told = _in_parts(learn_many, [lesson for _, lesson in left])
            later = []
            for (path, lesson), one in zip(left, told, strict=True):
                if one.state == "later":
                    later.append((path, lesson))
                else:
                    name = path.relative_to(root).as_posix()
                    yield FileTaught(name, lesson[1], one.state, one.id, one.detail)
            if len(later) == len(left):
                time.sleep(PAUSE)
            left = later


def predict_folder(
    predict: Callable[[list[Any]], list[Answer | ServiceError]],
    folder: str | PathLike[str],
    batch: int,
) -> Iterator[tuple[str, Answer | ServiceError]]:
    """Predict every image below the folder, in the order of names."""
    root = Path(folder)
    for group in _batches(_files(root, "**/*"), batch):
        try:
            told = predict([data for _, data in group])
        except ServiceError as error:
            if error.status != 422:
                raise
            told = [error] * len(group)  # none of them is an image
        for (path, _), one in zip(group, told, strict=True):
            yield path.relative_to(root).as_posix(), one


def _in_parts(learn_many: LearnMany, lessons: list[tuple[bytes, str, str]]) -> list[Taught]:
    """Learn; halves the batch as long as it is too large."""
    try:
        return learn_many(lessons)
    except ServiceError as error:
        if error.status != 413:
            raise
        if len(lessons) == 1:
            return [Taught("refused", None, str(error))]
    half = len(lessons) // 2
    return _in_parts(learn_many, lessons[:half]) + _in_parts(learn_many, lessons[half:])


def _files(root: Path, pattern: str) -> Iterator[File]:
    if not root.is_dir():
        raise ServiceError(f"There is no folder {root}.")
    for path in sorted(root.glob(pattern)):
        if path.suffix.lower() in SUFFIXES and path.is_file():
            yield path, path.read_bytes()


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


def _lesson(path: Path, data: bytes) -> tuple[bytes, str, str]:
    """(image, label, key), with the key that `anytimecl learn` and `watch` use."""
    label = " ".join(path.parent.name.split())
    key = hashlib.sha256(hashlib.sha256(data).digest() + label.encode()).hexdigest()
    return data, label, key
