"""Learn requests and their results."""

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
    """An image to learn; or an error if the image could not be received."""

    image: bytes | ImageError
    label: str
    candidates: Sequence[str] | None = None
    key: str | None = None
    content: bytes | None = None  # what a retry must repeat; by default the image
    source: str | None = None  # the image's name


@dataclass(frozen=True)
class Taught:
    """Result of learning an image."""

    id: int
    label: str
    repeated: bool  # the key or the labelled image was known: nothing was learned
    outcome: Outcome | None  # None if repeated
    replaced: str | None = None  # the image's previous label, if different
    event: int | None = None  # number in the memory's journal; None if repeated


class ReadyLesson(NamedTuple):
    """A validated learn request whose key is new."""

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
    """The key with everything that a retry must repeat."""
    if key is None:
        return None
    about = json.dumps([label, None if candidates is None else list(candidates)])
    return RequestKey(key, about.encode() + b"\0" + content)


def known(memory: Store, key: RequestKey | None, label: str) -> Taught | None:
    """Earlier result of this key, even if its example was forgotten."""
    if key is None:
        return None
    used, example = memory.used_key(key), memory.has_key(key)
    if used is not None and used.content == key.content:  # even if its example was changed since
        return Taught(used.example, label, repeated=True, outcome=None)
    if example is not None and (taught := memory.example(example).label) != label:
        raise Problem(
            409, f"The idempotency key belongs to example {example}, which is {taught!r}."
        )
    if used is not None:
        raise Problem(
            409,
            f"The idempotency key was used before, with other content, for example "
            f"{used.example}: choose a new key for a new example.",
        )
    return None if example is None else Taught(example, label, repeated=True, outcome=None)
