"""The processes of the Ray that a test has started, and of no other."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any


def processes(ray: Any, named: str, nodes: Iterable[Any] | None = None) -> list[int]:
    """Workers of these nodes, or of the one that this process has started, that are called so."""
    own = [ray._private.worker._global_node] if nodes is None else nodes
    raylets = {node.all_processes["raylet"][0].process.pid for node in own}
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            name = (place / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if parent in raylets and named in name:
            found.append(int(place.name))
    return found
