"""Whatever is wrong with an image becomes one `ImageError` that names it and says what to do."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import numpy as np
from PIL import Image

from anytimecl.errors import ImageError


class Refusal(Exception):
    """Why an image is refused and what to do about it; the image is named further out."""


@contextmanager
def errors_named(name: str, what: str = "image") -> Iterator[None]:
    try:
        with _pillow_quiet():
            yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise nearly every type there is on broken files
        raise ImageError(f"cannot read {what} {name}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, Refusal):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such file; check the path"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; check the path and its permissions"
    detail = " ".join(str(error).split()) or type(error).__name__  # one line, for reports
    return f"it is broken or cut short ({detail}); export or download it again"


_PILLOW_NOISE = ("ignore", None, Warning, re.compile(r"PIL\."), 0)  # as `warnings.filters` has it


@contextmanager
def _pillow_quiet() -> Iterator[None]:
    """Silence what Pillow says about odd metadata, in a way that threads may do at once.

    `catch_warnings` puts back a snapshot and so undoes what another thread did meanwhile. Adding
    one entry to the list and taking it out of the same list again cannot.
    """
    filters = cast("list[Any]", warnings.filters)
    filters.insert(0, _PILLOW_NOISE)
    try:
        yield
    finally:
        with suppress(ValueError):  # someone reset the filters meanwhile
            filters.remove(_PILLOW_NOISE)


def describe(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return repr(os.fspath(source))  # repr: a name may hold line breaks
    if isinstance(source, bytes | bytearray | memoryview):
        return f"(bytes of length {memoryview(source).nbytes})"
    if isinstance(source, Image.Image):
        return f"(PIL image of mode {source.mode}, size {source.width}x{source.height})"
    if isinstance(source, np.ndarray):
        return f"(array of shape {source.shape}, type {source.dtype})"
    name = getattr(source, "name", None)
    return repr(name) if isinstance(name, str) else f"({type(source).__name__})"
