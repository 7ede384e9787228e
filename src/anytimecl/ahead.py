"""Work on the next images while this one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import torch

from anytimecl.threads import one_thread

Item = TypeVar("Item")
Made = TypeVar("Made")


def some_ahead(
    items: Iterable[Item], work: Callable[[Item], Made], workers: int = 1, *, alone: bool = False
) -> Iterator[Callable[[], Made]]:
    """Results in order, the next ones worked out while this one is being used.

    With `alone`, whoever uses them has one thread of torch's meanwhile, and so has each worker:
    threads that share a product wait for each other, and busily, which takes longer than the
    product where others want the cores.

    >>> [made() for made in some_ahead([1, 2, 3], lambda number: number**2)]
    [1, 4, 9]
    """
    settle = partial(torch.set_num_threads, 1 if alone else torch.get_num_threads())
    scope = one_thread() if alone else nullcontext()
    with scope, ThreadPoolExecutor(workers, "anytimecl-encode", settle) as pool:
        waiting: deque[Future[Made]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result
            while waiting:
                yield waiting.popleft().result
        except Exception:  # of the items themselves: what they gave before it still counts
            while waiting:
                yield waiting.popleft().result
            raise
        finally:
            for future in waiting:  # nobody asks for the rest
                future.cancel()
