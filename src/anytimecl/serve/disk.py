"""Whether a disk has room to learn."""

from __future__ import annotations

import shutil
from pathlib import Path


def bytes_free(folder: Path) -> int:
    """That the folder's disk has left; 0 where it is gone.

    >>> bytes_free(Path("/no such folder"))
    0
    """
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def why_full(folder: Path, least: int) -> str | None:
    """What to do about a disk that has less than this left; None where it has more."""
    free = bytes_free(folder)
    if free >= least:
        return None
    return (
        f"The disk of the memory has {free:,} bytes left, and less than {least:,} is too little to "
        "learn: make room."
    )
