"""Downloads pictures from Label Studio, from its own address only and within limits."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from anytimecl.errors import ImageError
from anytimecl.serve.problems import Problem
from anytimecl.serve.uploads import from_base64

PICTURE_BYTES = 32 << 20
ALL_BYTES = 128 << 20  # of all pictures of a request
SECONDS = 20.0  # without receiving data
ALL_SECONDS = 60.0  # for all pictures of a request
_CHUNK = 64 << 10
_KEPT = "%/:=&?~#+!$,;'@()*[]"  # characters of a URL that are not escaped


@dataclass(frozen=True)
class LabelStudio:
    """The Label Studio from which pictures may be downloaded."""

    url: str | None = None
    key: str | None = None  # its access token

    def resolve(self, address: str) -> str:
        """A picture's full URL; raises if it is not in this Label Studio.

        >>> LabelStudio("http://ls").resolve("/data/a b.png")
        'http://ls/data/a%20b.png'
        """
        if self.url is None:
            raise Problem(
                422, "Pictures in Label Studio are fetched after `anytimecl serve --label-studio`."
            )
        own = urlsplit(self.url)
        try:
            whole = urljoin(self.url.rstrip("/") + "/", address)
            found = urlsplit(whole)
            same = (found.scheme, found.netloc) == (own.scheme, own.netloc)
            escaped = quote(whole, safe=_KEPT)
        except ValueError:  # UnicodeError among them
            raise Problem(422, "The address of the picture is malformed.") from None
        if not same:
            raise Problem(422, f"The picture is not on {self.url}, and others are not fetched.")
        return escaped


class Allowance:
    """Bytes and seconds for all pictures of a request; thread-safe.

    >>> Allowance(most=10).take(11)
    Traceback (most recent call last):
    anytimecl.serve.problems.Problem: The pictures of one request have at most 10 bytes together.
    """

    def __init__(self, most: int | None = None, seconds: float = ALL_SECONDS) -> None:
        self._most = self._left = ALL_BYTES if most is None else most
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Use some bytes; raises if the limits are exceeded."""
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise Problem(
                    413, f"The pictures of one request have at most {self._most:,} bytes together."
                )
        if time.monotonic() > self._end:
            raise Problem(422, "The pictures come too slowly from Label Studio.")


async def fetch(studio: LabelStudio, address: Any, allowance: Allowance) -> bytes:
    """A task's picture: inline, or from Label Studio."""
    if not isinstance(address, str) or not address:
        raise Problem(422, "The task has no picture.")
    if address.startswith("data:"):
        return from_base64(address)
    return await asyncio.to_thread(_download, studio.resolve(address), studio.key, allowance)


async def fetch_or_error(
    studio: LabelStudio, address: Any, allowance: Allowance
) -> bytes | ImageError:
    """As `fetch`, with an error for the picture instead of an exception."""
    try:
        return await fetch(studio, address, allowance)
    except ImageError as error:
        return error
    except Problem as problem:
        return ImageError(problem.detail)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: they could lead anywhere."""

    def redirect_request(self, *args: Any) -> None:
        return None


def _download(url: str, key: str | None, allowance: Allowance) -> bytes:
    try:
        headers = {"Authorization": f"Token {key}"} if key else {}
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.build_opener(_Stay).open(request, timeout=SECONDS) as response:
            return _read(response, allowance)
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "code", "") or getattr(error, "reason", error)
        raise Problem(422, f"The picture cannot be fetched from Label Studio: {why}.") from None


def _read(response: Any, allowance: Allowance) -> bytes:
    data = bytearray()
    while chunk := response.read1(_CHUNK):
        data += chunk
        if len(data) > PICTURE_BYTES:
            raise Problem(413, f"A picture has at most {PICTURE_BYTES:,} bytes.")
        allowance.take(len(chunk))
    return bytes(data)
