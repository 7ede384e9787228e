"""Who asks: known from the guard at the door to whatever does the work."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from anytimecl.serve.tokens import EVERYTHING, Grant


@dataclass(frozen=True)
class Asker:
    """A client and the request it is asking with."""

    client: str = ""  # what its share and its rate are counted under
    name: str = ""  # as logs have it: of its token, or its address
    request: str = ""
    grant: Grant = EVERYTHING
    allowed: Callable[[], bool] = lambda: True  # whether it still may ask what it is asking


ASKER: ContextVar[Asker] = ContextVar("asker", default=Asker())  # noqa: B039 (it is frozen)
