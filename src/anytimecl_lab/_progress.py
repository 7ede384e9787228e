"""Progress: a bar in a terminal with rich, else occasional lines; rich is optional."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
EVERY = 10.0  # seconds between two lines in a log


def tell(text: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def track(items: Iterable[T], what: str) -> Iterator[T]:
    """Iterate with a progress display."""
    total = len(items) if isinstance(items, Sized) else None
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import track as bar
        except ImportError:
            pass
        else:
            yield from bar(items, what, total, console=Console(stderr=True), transient=True)
            return
    said = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            tell(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))
