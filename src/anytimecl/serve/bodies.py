"""Bodies of requests, limited in size and time, each and together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from starlette.types import Message, Receive

from anytimecl.serve.options import Options
from anytimecl.serve.problems import Busy, Problem

SMALL = 16  # uploads below 1 / SMALL of the largest allowed are small


class Uploads:
    """Bytes of the current requests, by client.

    >>> uploads = Uploads(Options())
    >>> uploads.take("somebody", 10, 10)
    >>> uploads.give_back("somebody", 10)
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._bytes: Counter[str] = Counter()

    def take(self, client: str, count: int, size: int) -> None:
        """Count received bytes of an upload with `size` bytes so far; raises Busy beyond the limit.

        The last quarter is reserved for small uploads, and the last eighth for clients with little:
        slow, large uploads do not block the others.
        """
        self._bytes[client] += count
        room, taken = self.options.uploads_bytes, self._bytes.total()
        crowded = size > self.options.upload_bytes // SMALL and taken > room * 3 // 4
        greedy = self._bytes[client] > room * 7 // 8
        if taken > room or crowded or greedy:
            raise Busy("Too much is being uploaded at once; ask again later.", 2)

    def give_back(self, client: str, size: int) -> None:
        """Subtract `size` bytes of a finished upload."""
        self._bytes[client] -= size
        if not self._bytes[client]:
            del self._bytes[client]


class Body:
    """The body of a request, limited in size and time."""

    def __init__(self, uploads: Uploads, receive: Receive) -> None:
        self._uploads, self._receive = uploads, receive
        self._deadline = time.monotonic() + uploads.options.upload_seconds
        self._complete = asyncio.Event()
        self.client = ""
        self.size = 0

    async def gone(self) -> None:
        """Returns when the client disconnects after sending the whole body."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def expect(self, length: str | None) -> None:
        """Reject a body by its Content-Length."""
        if length is not None and length.isdecimal():
            self._check(int(length))

    async def receive(self) -> Message:
        """ASGI receive."""
        if self._complete.is_set():  # only a disconnect can follow
            return await self._receive()
        try:
            left = self._deadline - time.monotonic()
            message = await asyncio.wait_for(self._receive(), max(left, 0.001))
        except TimeoutError:
            raise Problem(408, "The request did not arrive in time.", connection="close") from None
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.size += size
            try:
                self._uploads.take(self.client, size, self.size)
            except Busy:  # at once, else a concurrent upload is rejected because of it
                self.give_back()
                raise
            self._check(self.size)
            if not message.get("more_body", False):
                self._complete.set()
        return message

    def _check(self, size: int) -> None:
        most = self._uploads.options.upload_bytes
        if size > most:
            raise Problem(413, f"A request has at most {most:,} bytes.", connection="close")

    def give_back(self) -> None:
        """The request is over, and its bytes are freed."""
        self._uploads.give_back(self.client, self.size)
        self.size = 0
