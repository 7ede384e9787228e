"""The right and the memories that a request needs."""

from __future__ import annotations

import re
from typing import NamedTuple

from anytimecl.serve.assets import ASSETS
from anytimecl.serve.rights import Right

DEFAULT = "default"  # the memory of paths that name none
# These reveal nothing of a memory; the page's script asks for the token.
PAGE = frozenset(ASSETS) | {"/docs", "/docs.css"}
HEALTH = frozenset({"/healthz", "/readyz"})
OPEN = PAGE | HEALTH | {"/openapi.json"}
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
READING_POSTS = frozenset(
    {
        "/v1/predict",
        "/v1/order",
        "/v1/examples/like",
        "/label-studio/predict",
        "/label-studio/setup",
    }
)
WRITERS = frozenset({"/v1/audit", "/v1/backup"})  # these reveal who did what, and everything stored
_TOKENS = re.compile(r"/v1/tokens(/.*)?")
_MEMORY = re.compile(r"/v1/memories/([^/]+)(/.*)?", re.DOTALL)


class Need(NamedTuple):
    """A token must have this right, for all of these memories (`None`: no right; every memory)."""

    right: Right | None
    memories: tuple[str, ...] | None = None


def needed(method: str, path: str) -> Need:
    """Right and memories that a request needs; unknown requests need the right to write.

    >>> needed("GET", "/v1/stats"), needed("POST", "/v1/memories/cats/learn")
    (Need(right='read', memories=('default',)), Need(right='write', memories=('cats',)))
    >>> needed("DELETE", "/v1/memories/cats"), needed("GET", "/healthz")
    (Need(right='admin', memories=None), Need(right=None, memories=None))
    """
    safe = method in SAFE
    if safe and path in OPEN:
        return Need(None)
    if _TOKENS.fullmatch(path) or path == "/v1/memories":
        # Any token may list the memories that it is valid for.
        return Need("read", ()) if safe and path == "/v1/memories" else Need("admin")
    if found := _MEMORY.fullmatch(path):
        memory, rest = found[1], found[2]
        if rest is None and not safe:
            return Need("admin")
        return Need(_right(f"/v1{rest or ''}", safe=safe), (memory,))
    if path.startswith(("/v1/", "/label-studio/")):
        return Need(_right(path, safe=safe), (DEFAULT,))
    return Need(_right(path, safe=safe))  # of the service as a whole: metrics


def _right(path: str, *, safe: bool) -> Right:
    if safe:
        return "write" if path in WRITERS else "read"
    return "read" if path in READING_POSTS else "write"
