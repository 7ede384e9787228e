"""What a request needs: a right, and the memories it is about."""

from __future__ import annotations

import re
from typing import NamedTuple

from anytimecl.serve.assets import ASSETS
from anytimecl.serve.tokens import Right

DEFAULT = "default"  # the memory of paths that name none
# The page and the reference hold nothing of a memory; the page asks for a token itself.
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
WRITERS = frozenset({"/v1/audit", "/v1/backup"})  # who did what, and all there is
_TOKENS = re.compile(r"/v1/tokens(/.*)?")
_MEMORY = re.compile(r"/v1/memories/([^/]+)(/.*)?", re.DOTALL)


class Need(NamedTuple):
    """Of a token: this right, for all of these memories. None: nothing; every memory."""

    right: Right | None
    memories: tuple[str, ...] | None = None


def needed(method: str, path: str) -> Need:
    """What a request needs; whatever is not known to only read, writes.

    >>> needed("GET", "/v1/stats"), needed("POST", "/v1/memories/cats/learn")
    (Need(right='read', memories=('default',)), Need(right='write', memories=('cats',)))
    >>> needed("DELETE", "/v1/memories/cats"), needed("GET", "/healthz")
    (Need(right='admin', memories=None), Need(right=None, memories=None))
    """
    safe = method in SAFE
    if safe and path in OPEN:
        return Need(None)
    if _TOKENS.fullmatch(path) or path == "/v1/memories":
        # Whoever has any token may ask which memories it is for.
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
