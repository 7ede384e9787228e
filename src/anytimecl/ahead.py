"""Work on the next images while this one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from anytimecl.threads import one_thread

Item = TypeVar("Item")
Made = TypeVar("Made")
MOST = 4  # workers: each has an image, decoded, and its activations in RAM


def some_ahead(items: Iterable[Item], work: Callable[[Item], Made]) -> Iterator[Callable[[], Made]]:
    """Results in order, the next ones worked out while this one is being used.

    As many as torch has threads, and one more, so that no core waits for another. Each then has
    one thread of torch's, the caller too: threads that share a product wait for each other, and
    busily, which takes longer than the product where others want the cores.

    >>> [made() for made in some_ahead([1, 2, 3], lambda number: number**2)]
    [1, 4, 9]
    """
    threads = torch.get_num_threads()
    workers = min(threads + 1, MOST) if threads > 1 else 1
    with one_thread(), ThreadPoolExecutor(workers, "anytimecl-encode", _alone) as pool:
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


def _alone() -> None:
    torch.set_num_threads(1)
