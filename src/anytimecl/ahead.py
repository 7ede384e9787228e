"""Prefetching: encode the next images while one is learned."""

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
    """Results in order, with the next ones computed while one is used.

    With `alone`, the consumer and each worker use one torch thread: threads that share a product
    busy-wait for each other, which costs more than the product if other work needs the cores.

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
        except Exception:  # raised by `items`: results of earlier ones are still yielded
            while waiting:
                yield waiting.popleft().result
            raise
        finally:
            for future in waiting:  # the consumer stopped early
                future.cancel()
