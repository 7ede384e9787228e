"""The durable example store: records made by a codec, each with a label, in one SQLite file.

A memory is the journal too. What happened since a checkpoint, in which order, is in `events`.
"""

from __future__ import annotations

from anytimecl.memory.contract import Event, Example, Memory, Row, StoreWarning
from anytimecl.memory.maintenance import Info, Report, backup, compact, info, rescue, verify
from anytimecl.memory.opening import open_memory
from anytimecl.memory.ram import RamMemory
from anytimecl.memory.store import Store

__all__ = [
    "Event",
    "Example",
    "Info",
    "Memory",
    "RamMemory",
    "Report",
    "Row",
    "Store",
    "StoreWarning",
    "backup",
    "compact",
    "info",
    "open_memory",
    "rescue",
    "verify",
]
