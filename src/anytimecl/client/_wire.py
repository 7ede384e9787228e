"""HTTP requests with retries where that is safe, with the standard library alone."""

from __future__ import annotations

import http.client
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import dumps, loads
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anytimecl.client._told import ServiceError
from anytimecl.errors import ImageError, reason

LOST = (OSError, http.client.HTTPException, UnicodeError)  # the last: a name that no host can have
Take = Callable[[http.client.HTTPResponse], None]
ImageFile = str | PathLike[str] | bytes


class Wire:
    """Sends requests to a service.

    >>> Wire("http://127.0.0.1:8000/", None, timeout=1, patience=1, retries=0).url
    'http://127.0.0.1:8000'
    """

    def __init__(
        self, url: str, token: str | None, *, timeout: float, patience: float, retries: int
    ) -> None:
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, or half a bracket
            known = False
        if not known:
            raise ServiceError(f"An address looks like http://127.0.0.1:8000, not {url!r}.")
        self.url = url.rstrip("/")
        self._parts = parts
        self._own: dict[str, str] = {}  # headers of every request
        if token is not None:
            self._own["Authorization"] = f"Bearer {token.strip()}"  # a file of it ends with a line
            _check_header("token", token.strip())
        self._timeout = timeout
        self._patience = patience
        self._retries = retries

    def form(
        self,
        path: str,
        fields: Sequence[tuple[str, str]],
        files: Sequence[tuple[str, bytes]],
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        for value in (headers or {}).values():
            _check_header("key", value)
        boundary = uuid.uuid4().hex
        body = b"".join([*_parts(boundary, fields, files), f"--{boundary}--\r\n".encode()])
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return self.ask("POST", path, body, {**kind, **(headers or {})})

    def json(self, path: str, asked: Mapping[str, Any], *, once: bool = False) -> dict[str, Any]:
        body = dumps(asked).encode()
        return self.ask("POST", path, body, {"Content-Type": "application/json"}, once=once)

    def lines(self, path: str) -> list[dict[str, Any]]:
        """Parse a response in JSON Lines."""
        found: list[dict[str, Any]] = []

        def take(response: http.client.HTTPResponse) -> None:
            found.extend(map(loads, response.read().splitlines()))

        self.ask("GET", path, take=take)
        return found

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
        *,
        once: bool = False,
        take: Take | None = None,
    ) -> dict[str, Any]:
        """With `once`, never retry what may have arrived. `take` reads a non-JSON response."""
        end, lost = time.monotonic() + self._patience, 0
        while True:
            try:
                return self._ask_once(method, path, body, headers, take)
            except ServiceError as error:
                wait = error.retry_after
                if error.status == 0:
                    lost += 1
                    final = lost > self._retries or (once and error.reached)
                    wait = None if final else random.uniform(0.5, 1) * 0.2 * 2**lost
                if wait is None or time.monotonic() + wait > end:
                    raise
            time.sleep(wait)

    def _ask_once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        take: Take | None,
    ) -> dict[str, Any]:
        kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        connection = kind[self._parts.scheme](self._parts.netloc, timeout=self._timeout)
        reached = False
        try:
            connection.connect()
            reached = True
            whole = self._parts.path.rstrip("/") + path
            connection.request(method, whole, body, {**headers, **self._own})
            response = connection.getresponse()
            if take is not None and response.status < 300:
                take(response)
                return {}
            told = response.read()
        except LOST as error:
            told_so = f"{self.url} does not answer: {error!r}."
            raise ServiceError(told_so, reached=reached) from error
        finally:
            connection.close()
        return _check(response, told)


def _check(response: http.client.HTTPResponse, told: bytes) -> dict[str, Any]:
    try:
        content = loads(told or b"{}")  # 204 has no body
    except ValueError:
        content = None
    if isinstance(content, dict) and response.status < 300:
        return content
    detail = f"The service answered {response.status} {response.reason}."
    if response.status < 300:
        detail = "The answer is no JSON: there is something else than the service at this address."
    problem = content if isinstance(content, dict) else {}
    wait = response.getheader("Retry-After", "")
    raise ServiceError(
        problem.get("detail") or detail,
        response.status,
        float(wait) if wait.isdecimal() else None,
        images=problem.get("errors") or (),
    )


def _check_header(what: str, value: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"A {what} is text, not {type(value).__name__}.")
    if not (value.isascii() and value.isprintable()):  # not repeated: it may be a secret
        raise ServiceError(f"A {what} has printable ASCII characters alone, and this has others.")


def _parts(
    boundary: str, fields: Sequence[tuple[str, str]], files: Sequence[tuple[str, bytes]]
) -> Iterator[bytes]:
    for name, value in fields:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        yield head.encode() + value.encode() + b"\r\n"
    for name, data in files:
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="image"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        yield head.encode() + data + b"\r\n"


def read_file(image: ImageFile) -> bytes:
    """The bytes of an image file."""
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if not isinstance(image, str | PathLike):
        raise TypeError(
            f"An image is the path or the bytes of its file, not {type(image).__name__}."
        )
    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise ImageError(f"cannot read image {str(image)!r}: {reason(error)}") from error
