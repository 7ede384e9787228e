"""What a token permits: a right, for some memories or for all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

Right = Literal["read", "write", "admin"]  # each includes those before it
RIGHTS: tuple[Right, ...] = get_args(Right)


@dataclass(frozen=True)
class Grant:
    """The right of a token, and its memories.

    >>> Grant("camera", "write", frozenset({"cats"})).covers(["cats"])
    True
    """

    name: str  # for logs
    right: Right
    memories: frozenset[str] | None = None  # None: all, future ones included

    def covers(self, memories: Collection[str] | None) -> bool:
        """Whether it is valid for these memories; None: for all memories."""
        if self.memories is None:
            return True
        return memories is not None and self.memories.issuperset(memories)

    def includes(self, right: Right) -> bool:
        """Whether its right includes this one."""
        return RIGHTS.index(self.right) >= RIGHTS.index(right)


EVERYTHING = Grant("", "admin")  # for clients of a service without tokens
