"""Work on a GPU beside what other threads do there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Lane:
    """A stream of one's own, if the device has streams; on a CPU it changes nothing.

    >>> lane = Lane(torch.device("cpu"))
    >>> with lane.taken():
    ...     print(torch.ones(2).sum())
    tensor(2.)
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # What was made before, the model among it, is there for whoever comes.
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """What is done here waits for nobody; whoever goes on after it waits for it."""
        if self._stream is None:
            yield
            return
        usual = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)
