"""Whether a disk has enough space to learn."""

from __future__ import annotations

import shutil
from pathlib import Path


def bytes_free(folder: Path) -> int:
    """Free bytes on the folder's disk; 0 if the folder does not exist.

    >>> bytes_free(Path("/no such folder"))
    0
    """
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def why_full(folder: Path, least: int) -> str | None:
    """Error message if the disk has less than `least` bytes left, else None."""
    free = bytes_free(folder)
    if free >= least:
        return None
    return (
        f"The disk of the memory has {free:,} bytes left, and less than {least:,} is too little to "
        "learn: make room."
    )
