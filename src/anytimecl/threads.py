"""Control of torch's number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run with one torch thread.

    Sums split among threads round differently, and learning has to be bit-identical with any
    number of threads: a replay may use more of them than learning many images in parallel did.

    >>> before = torch.get_num_threads()
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)  # for this thread, and for threads that first use torch meanwhile
    try:
        yield
    finally:
        torch.set_num_threads(before)
