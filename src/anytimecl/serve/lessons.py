"""What is taught over HTTP, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anytimecl.errors import ImageError
from anytimecl.labels import clean_label, clean_labels
from anytimecl.memory import RequestKey, Store
from anytimecl.serve.history import Outcome
from anytimecl.serve.problems import Problem


@dataclass(frozen=True)
class Lesson:
    """An image to learn; an error in its place where it could not even be received."""

    image: bytes | ImageError
    label: str
    candidates: Sequence[str] | None = None
    key: str | None = None
    content: bytes | None = None  # what a retry must have in common; else the image
    source: str | None = None  # what the image is called


@dataclass(frozen=True)
class Taught:
    """What became of a lesson."""

    id: int
    label: str
    repeated: bool  # its key or the very same was known, so nothing was learned again
    outcome: Outcome | None  # None where it was repeated
    replaced: str | None = None  # the label that this image had before, if another
    event: int | None = None  # of the memory; None where it was repeated


class ReadyLesson(NamedTuple):
    """A lesson that makes sense, and is not known yet."""

    image: bytes
    label: str  # clean
    candidates: Sequence[str] | None  # clean
    key: RequestKey | None
    source: str | None


def cleaned(label: str, candidates: Sequence[str] | None) -> tuple[str, Sequence[str] | None]:
    """Label and candidates in the form in which they are stored.

    >>> cleaned(" tabby  cat", ["dog"])
    ('tabby cat', ['tabby cat', 'dog'])
    """
    name = clean_label(label)
    return name, None if candidates is None else clean_labels([name, *candidates])


def request_key(
    key: str | None, content: bytes, label: str, candidates: Sequence[str] | None
) -> RequestKey | None:
    """The key together with all that a retry repeats."""
    if key is None:
        return None
    about = json.dumps([label, None if candidates is None else list(candidates)])
    return RequestKey(key, about.encode() + b"\0" + content)


def known(memory: Store, key: RequestKey | None, label: str) -> Taught | None:
    """What the key taught before, even if that is forgotten."""
    if key is None:
        return None
    used, example = memory.used_key(key), memory.has_key(key)
    if used is not None and used.content == key.content:  # whatever became of its example since
        return Taught(used.example, label, repeated=True, outcome=None)
    if example is not None and (taught := memory.example(example).label) != label:
        raise Problem(
            409, f"The idempotency key belongs to example {example}, which is {taught!r}."
        )
    if used is not None:
        raise Problem(
            409,
            f"The idempotency key was used before, with other content, for example "
            f"{used.example}: choose a new key for a new lesson.",
        )
    return None if example is None else Taught(example, label, repeated=True, outcome=None)
