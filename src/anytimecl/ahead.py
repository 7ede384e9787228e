"""Work on the next while this one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def one_ahead(items: Iterable[Item], work: Callable[[Item], Made]) -> Iterator[Callable[[], Made]]:
    """Results in order, each worked out while the one before it is being used."""
    with ThreadPoolExecutor(1, "anytimecl-encode") as pool:
        waiting: Future[Made] | None = None
        try:
            for item in items:
                before, waiting = waiting, pool.submit(work, item)
                if before is not None:
                    yield before.result
        except Exception:  # of the items themselves: what they gave before it still counts
            if waiting is not None:
                yield waiting.result
            raise
        if waiting is not None:
            yield waiting.result
