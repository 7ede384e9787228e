"""How many threads of torch's share a piece of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One for what is done here by this thread.

    Sums that are shared out round otherwise, and what is learned has to be the same with any
    number of threads: who learns many images at once takes one for each, who repeats them all.

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
    torch.set_num_threads(1)  # of this thread, and of those that are new to torch meanwhile
    try:
        yield
    finally:
        torch.set_num_threads(before)
