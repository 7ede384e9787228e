"""The interface of a memory, and the types of its rows and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from anytimecl.memory.keys import Used

if TYPE_CHECKING:
    from anytimecl.memory.acts import LabelHistory

Progress = Callable[[int, int], None]  # done, total


class StoreWarning(UserWarning):
    """Something stored is damaged or missing; the rest is usable."""


class Row(NamedTuple):
    """An example to store.

    >>> Row("cat", b"bytes of a codec").candidates is None
    True
    """

    label: str
    record: bytes
    candidates: Sequence[str] | None = None
    key: str | None = None
    time: int | None = None  # in milliseconds since 1970; None: now
    content: int | None = None  # digest of the image's tokens, to recognise the image
    source: str | None = None  # its name where it comes from
    thumbnail: bytes | None = None  # WebP file


class Stored(NamedTuple):
    """The parts of an example that a step needs."""

    id: int
    record: bytes
    candidates: Sequence[str] | None  # candidate labels, as given


class Example(NamedTuple):
    """A stored example. Its id is the number of the event that stored it."""

    id: int
    label: str
    record: bytes
    candidates: tuple[str, ...] | None
    event: int


class Event(NamedTuple):
    """One entry of the journal.

    The memory writes these kinds by itself: `learn` ({"example": id}), `evict` ({"example": id,
    "label": label}), `forget` ({"examples": [id, ...]}) and `lost` ({"first": number, "last":
    number}, after damage); `acts` adds `relabel`, `merge`, `rename` and `withdraw`. Callers add
    others, such as `consolidate`.
    """

    number: int
    kind: str
    data: dict[str, Any]


class Memory(Protocol):
    """Durable store of examples: opaque records, each with a label.

    Thread-safe: calls on one memory are serialised. An iterator may be advanced while other threads
    write; what is added meanwhile comes last.
    """

    @property
    def meta(self) -> Mapping[str, str]:
        """Metadata, fixed when the memory was created."""
        ...

    def append(
        self,
        label: str,
        record: bytes,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
        time: int | None = None,
        content: int | None = None,
    ) -> int:
        """Store an example and its `learn` event; durable when this returns its id.

        With a `key` that was used before, nothing is stored and the first id is returned. A key is
        deleted with its example, unless it is a `RequestKey`, which is kept (`used_key`).
        """
        ...

    def append_many(self, rows: Iterable[Row | tuple[str, bytes]]) -> list[int]:
        """Store all of the rows or, if anything fails, none."""
        ...

    def has_key(self, key: str) -> int | None:
        """The id of the example stored under `key`."""
        ...

    def taught_by(self, key: str) -> int | None:
        """The id of the example learned with a plain key, even if it has another key now."""
        ...

    def came_with(self, key: str, label: str) -> bool:
        """Whether a former key of an example was used with that label."""
        ...

    def used_key(self, key: str) -> Used | None:
        """What a `RequestKey` was used for, even if its example is forgotten; None if unused."""
        ...

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The records, in the order given. StoreError names one that is missing or damaged."""
        ...

    def stored(self, ids: Sequence[int]) -> list[Stored]:
        """Examples for a step; a StoreWarning names those that are missing or damaged."""
        ...

    def example(self, example: int) -> Example:
        """Everything about one example."""
        ...

    def label(self, example: int) -> str | None:
        """The label of an example; None if it was undone and is to be deleted."""
        ...

    def digest(self, example: int) -> int | None:
        """The digest of an example's tokens, if known."""
        ...

    def history(self, after: int = 0) -> LabelHistory:
        """Corrections of labels after an event."""
        ...

    def ids_at(self, number: int) -> Iterator[tuple[int, str]]:
        """Every (id, label) in order of arrival, as of just after an event."""
        ...

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        """Every (id, label) in order of arrival, or only those of one label."""
        ...

    def labels(self) -> dict[str, int]:
        """Number of examples of each label, in order of first appearance."""
        ...

    def record_event(self, kind: str, data: dict[str, Any]) -> int:
        """Add an event to the journal; returns its number."""
        ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """The journal in order, from the first number above `after`."""
        ...

    def forget(self, ids: Sequence[int]) -> int:
        """Delete examples and overwrite their bytes; returns their number."""
        ...

    def __len__(self) -> int: ...

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
