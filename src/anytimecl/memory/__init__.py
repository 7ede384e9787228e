"""The durable example store: records made by a codec, each with a label, in one SQLite file.

It includes the journal, the ordered list of events that recovery replays.
"""

from __future__ import annotations

from anytimecl.memory.contract import Event, Example, Memory, Row, StoreWarning
from anytimecl.memory.keys import FileKey, RequestKey, Used
from anytimecl.memory.maintenance import Info, Report, backup, compact, info, rescue, verify
from anytimecl.memory.opening import open_as, open_memory
from anytimecl.memory.ram import RamMemory, open_in_ram
from anytimecl.memory.store import Store
from anytimecl.registry import Registry

__all__ = [
    "STORES",
    "Event",
    "Example",
    "FileKey",
    "Info",
    "Memory",
    "RamMemory",
    "Report",
    "RequestKey",
    "Row",
    "Store",
    "StoreWarning",
    "Used",
    "backup",
    "compact",
    "info",
    "open_as",
    "open_memory",
    "rescue",
    "verify",
]

# Called with a folder or None, the metadata of a new memory or None, and whether it is read-only.
STORES: Registry[Store] = Registry("store", {"sqlite": open_memory, "ram": open_in_ram}, context=3)
