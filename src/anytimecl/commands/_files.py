"""Files, folders and zips from the command line as references to images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from anytimecl.commands._words import in_options
from anytimecl.errors import ImageError
from anytimecl.images import ImageRef, iter_images


class Failure(NamedTuple):
    """An argument that cannot be used, and why."""

    name: str
    why: str


def find(paths: Iterable[Path]) -> Iterator[ImageRef | Failure]:
    """All images in the given order; folders and zips are expanded."""
    for path in paths:
        try:
            if path.is_dir() or (path.suffix.lower() == ".zip" and path.is_file()):
                yield from iter_images(path)
            else:
                yield ImageRef(path.name, label=None, split=None, root=path.parent)
        except ImageError as error:
            yield Failure(str(path), in_options(str(error)))


def shown(ref: ImageRef) -> str:
    """The path of an image as the user would write it."""
    return str(ref.root / ref.name)
