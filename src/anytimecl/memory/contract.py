"""What a memory promises to whoever learns from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

Progress = Callable[[int, int], None]  # done, of how many


class StoreWarning(UserWarning):
    """Something stored is damaged or gone; what is left goes on working."""


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
    number}, after damage). Whoever learns adds others, such as `consolidate`.
    """

    number: int
    kind: str
    data: dict[str, Any]


class Memory(Protocol):
    """Examples that outlive the process: opaque records, each with a label.

    Every method may be called from any thread: calls on one memory take turns. An iterator may be
    advanced while others write; what is added meanwhile comes last.
    """

    @property
    def meta(self) -> Mapping[str, str]:
        """What was written down when the memory was created."""
        ...

    def append(
        self,
        label: str,
        record: bytes,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
        time: int | None = None,
    ) -> int:
        """Store an example and its `learn` event; it is durable when this returns its id.

        A `key` makes a repeated call harmless: the second one stores nothing and returns the first
        id. The key goes when the example goes.
        """
        ...

    def append_many(self, rows: Iterable[Row | tuple[str, bytes]]) -> list[int]:
        """Store all of the rows or, if anything fails, none."""
        ...

    def has_key(self, key: str) -> int | None:
        """The id of the example stored under `key`."""
        ...

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The records, in the order given. StoreError names one that is missing or damaged."""
        ...

    def read_ok(self, ids: Sequence[int]) -> list[tuple[int, bytes]]:
        """Like `read`, but leaves out what is missing or damaged, with a StoreWarning naming it."""
        ...

    def example(self, example: int) -> Example:
        """Everything about one example."""
        ...

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        """Every (id, label) in order of arrival, or only those of one label."""
        ...

    def labels(self) -> dict[str, int]:
        """How many examples each label has, in order of first appearance."""
        ...

    def candidates(self, ids: Sequence[int]) -> list[tuple[str, ...] | None]:
        """The labels that each example was to be told apart from, as they were given."""
        ...

    def record_event(self, kind: str, data: dict[str, Any]) -> int:
        """Add an entry of one's own to the journal, and return its number."""
        ...

    def events(self, after: int = 0) -> Iterator[Event]:
        """The journal in order, from the first number above `after`."""
        ...

    def forget(self, ids: Sequence[int]) -> int:
        """Remove examples for good, their bytes overwritten; returns how many there were."""
        ...

    def __len__(self) -> int: ...

    def close(self) -> None:
        """Let go of the files; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
