"""What a memory promises to whoever learns from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from anytimecl.memory.keys import Used

if TYPE_CHECKING:
    from anytimecl.memory.acts import LabelHistory

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
    content: int | None = None  # digest of the image's tokens, to know it again
    source: str | None = None  # what it was called where it came from
    thumbnail: bytes | None = None  # a small picture of it, as a file


class Stored(NamedTuple):
    """An example as a step reads it back."""

    id: int
    record: bytes
    candidates: Sequence[str] | None  # the labels to tell it apart from, as they were given


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
    number}, after damage); `acts` adds `relabel`, `merge`, `rename` and `withdraw`. Whoever learns
    adds others, such as `consolidate`.
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
        content: int | None = None,
    ) -> int:
        """Store an example and its `learn` event; it is durable when this returns its id.

        A `key` makes a repeated call harmless: the second one stores nothing and returns the first
        id. The key goes when the example goes, unless it is a `RequestKey`, which `used_key` knows
        for ever.
        """
        ...

    def append_many(self, rows: Iterable[Row | tuple[str, bytes]]) -> list[int]:
        """Store all of the rows or, if anything fails, none."""
        ...

    def has_key(self, key: str) -> int | None:
        """The id of the example stored under `key`."""
        ...

    def taught_by(self, key: str) -> int | None:
        """The id of the example that a plain key taught, even if it has another key by now."""
        ...

    def came_with(self, key: str, label: str) -> bool:
        """Whether a key that its example has no more had come with that label."""
        ...

    def used_key(self, key: str) -> Used | None:
        """What a `RequestKey` taught, even if that is forgotten; None if it never has."""
        ...

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """The records, in the order given. StoreError names one that is missing or damaged."""
        ...

    def stored(self, ids: Sequence[int]) -> list[Stored]:
        """What a step needs of each; a StoreWarning names what is missing or damaged."""
        ...

    def example(self, example: int) -> Example:
        """Everything about one example."""
        ...

    def label(self, example: int) -> str | None:
        """The label of an example; None if it was taken back and is about to go."""
        ...

    def digest(self, example: int) -> int | None:
        """Of the tokens of an example, where it is known."""
        ...

    def history(self, after: int = 0) -> LabelHistory:
        """What happened to labels after an event."""
        ...

    def ids_at(self, number: int) -> Iterator[tuple[int, str]]:
        """Every (id, label) in order of arrival, as it was just after an event."""
        ...

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        """Every (id, label) in order of arrival, or only those of one label."""
        ...

    def labels(self) -> dict[str, int]:
        """How many examples each label has, in order of first appearance."""
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
