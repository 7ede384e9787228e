"""Pictures that lie in Label Studio: which addresses are its own, and how much is fetched."""

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
ALL_BYTES = 128 << 20  # of the pictures of one request together
SECONDS = 20.0  # without a sign of life
ALL_SECONDS = 60.0  # for the pictures of one request together
_CHUNK = 64 << 10
_KEPT = "%/:=&?~#+!$,;'@()*[]"  # characters of an address that are not escaped


@dataclass(frozen=True)
class LabelStudio:
    """The Label Studio whose pictures may be fetched."""

    url: str | None = None
    key: str | None = None  # its access token

    def resolve(self, address: str) -> str:
        """The whole address of a picture, if it lies there.

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
    """Bytes and seconds that the pictures of one request may take together; from any thread.

    >>> Allowance(most=10).take(11)
    Traceback (most recent call last):
    anytimecl.serve.problems.Problem: The pictures of one request have at most 10 bytes together.
    """

    def __init__(self, most: int | None = None, seconds: float = ALL_SECONDS) -> None:
        self._most = self._left = ALL_BYTES if most is None else most
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Some more; an error if that is too much."""
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise Problem(
                    413, f"The pictures of one request have at most {self._most:,} bytes together."
                )
        if time.monotonic() > self._end:
            raise Problem(422, "The pictures come too slowly from Label Studio.")


async def fetch(studio: LabelStudio, address: Any, allowance: Allowance) -> bytes:
    """A picture of a task: inline, or from the one Label Studio."""
    if not isinstance(address, str) or not address:
        raise Problem(422, "The task has no picture.")
    if address.startswith("data:"):
        return from_base64(address)
    return await asyncio.to_thread(_download, studio.resolve(address), studio.key, allowance)


async def fetch_or_error(
    studio: LabelStudio, address: Any, allowance: Allowance
) -> bytes | ImageError:
    """One picture that cannot be had stops no other."""
    try:
        return await fetch(studio, address, allowance)
    except ImageError as error:
        return error
    except Problem as problem:
        return ImageError(problem.detail)


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect could lead anywhere."""

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
