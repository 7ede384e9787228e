"""Who sent the current request: a context variable, set by the guard."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from anytimecl.serve.rights import EVERYTHING, Grant


@dataclass(frozen=True)
class Asker:
    """A client and its current request."""

    client: str = ""  # key for fair queues and rate limits
    name: str = ""  # for logs: its token's name, or its address
    request: str = ""
    grant: Grant = EVERYTHING
    allowed: Callable[[], bool] = lambda: True  # whether the token is still valid for this request


ASKER: ContextVar[Asker] = ContextVar("asker", default=Asker())  # noqa: B039 (it is frozen)
