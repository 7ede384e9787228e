"""Backups and the audit log of a service."""

from __future__ import annotations

import http.client
import ssl
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anytimecl.client._told import ServiceError
from anytimecl.client._wire import Wire
from anytimecl.errors import StoreError, reason
from anytimecl.files import replacing

LINES = 10_000  # of the audit log per request


def backup(wire: Wire, path: str, to: Path) -> None:
    """Write a backup into a new folder, which appears when it is complete."""
    if to.exists():
        raise StoreError(f"There is something in {to} already: back up into a new folder.")

    def unpack(response: http.client.HTTPResponse) -> None:
        try:
            with replacing(to) as draft:
                with tarfile.open(fileobj=response, mode="r|") as archive:
                    archive.extractall(draft, filter="data")
                response.read()
                if response.length:
                    raise ServiceError("The backup was cut off: ask again.")
        except tarfile.TarError as error:
            raise ServiceError(f"The backup was cut off: {error}.") from error
        except (ConnectionError, TimeoutError, ssl.SSLError):
            raise  # of the connection: it is tried again
        except OSError as error:
            raise StoreError(f"The backup cannot be written to {to}: {reason(error)}.") from error

    wire.ask("GET", path, take=unpack)


def audit(wire: Wire, path: str) -> Iterator[dict[str, Any]]:
    """All lines, oldest first."""
    known = 0
    while lines := wire.lines(f"{path}?after={known}&limit={LINES}"):
        yield from lines
        known += len(lines)
