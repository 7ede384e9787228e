"""The owner's file lock, which ends with its process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from anytimecl.errors import StoreError
from anytimecl.files import shown

# Windows forbids reading locked bytes, so the locked byte is beyond the text. filelock locks the
# first byte, so the owner's process id could not be read.
_FAR = 1 << 20


class OwnerLock:
    """Held from construction to `close`; the file says which process holds it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "lock"
    >>> first = OwnerLock(path)
    >>> OwnerLock(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    anytimecl.errors.StoreError: The memory in ... is in use by process ...
    >>> first.close()
    >>> OwnerLock(path).close()
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        try:
            self._take(path)
        except BaseException:
            self.close()
            raise
        _HELD.add(self)

    def _take(self, path: Path) -> None:
        try:
            _lock(self._file)
        except OSError as error:
            # A network share of Windows refuses what another machine has locked.
            taken = isinstance(error, BlockingIOError | PermissionError)
            if sys.platform != "win32" and not taken:
                raise  # the file system has no locks
            owner = os.read(self._file, 32).decode("ascii", "replace").strip() or "unknown"
            raise StoreError(
                f"The memory in {shown(path.parent)} is in use by process {owner}: close it "
                "there, or open it here with read_only=True."
            ) from None
        with suppress(OSError):  # a full disk, on which forgetting makes room
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Release the lock. The file stays: removing it could remove another owner's lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_HELD: WeakSet[OwnerLock] = WeakSet()


def _let_go() -> None:
    """A forked child must not hold the lock when the owner has ended."""
    for lock in list(_HELD):
        lock.close()


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    os.register_at_fork(after_in_child=_let_go)

    def _lock(file: int) -> None:
        # Not `lockf`: the same process could lock twice, and closing any handle would unlock.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
