"""The memories of a service by name, with one model.

The first is always open; of the others, the most recently used ones are. An open memory has its
tuned weights in RAM; opening one takes a fraction of a second.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import secrets
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import AnytimeError, StoreError
from anytimecl.memory.database import FILE
from anytimecl.serve.access import DEFAULT
from anytimecl.serve.disk import why_full
from anytimecl.serve.engine import Engine
from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.tokens import MEMORY_NAME
from anytimecl.serve.turns import STOPPING

log = logging.getLogger("anytimecl.serve")
Opener = Callable[[Path], AnytimeClassifier]  # creates the memory if it does not exist
DELETED = ".deleted-"  # prefix of a folder's name while it is removed


@dataclass
class _Slot:
    """A memory that is open or being opened."""

    opening: asyncio.Task[Engine]
    users: int = 0

    @property
    def idle(self) -> bool:
        return not self.users and self.opening.done() and self.opening.result().idle

    async def engine(self) -> Engine:
        """Wait until it is open. Cancelling one caller does not affect the others."""
        return await asyncio.shield(self.opening)


class Memories:
    """The first memory and, if a folder is given, any number of others in it.

    Must be used on the event loop, except for `stop_soon`.
    """

    def __init__(
        self, default: Engine, folder: Path | None = None, opener: Opener | None = None
    ) -> None:
        self.default = default
        self.options = default.options
        self._folder, self._opener = folder, opener
        self._slots: OrderedDict[str, _Slot] = OrderedDict()  # least recently used first
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._going: set[str] = set()  # being deleted
        self._stopping = False
        self.on_deleted: Callable[[str], None] = lambda name: None
        if folder is not None and not default.read_only:
            _sweep(folder)

    def names(self) -> list[str]:
        """Names of all memories, the first one first."""
        found = [] if self._folder is None else sorted(self._folder.glob(f"*/{FILE}"))
        names = [path.parent.name for path in found]
        others = [name for name in names if name != DEFAULT and MEMORY_NAME.fullmatch(name)]
        return [DEFAULT, *(name for name in others if name not in self._going)]

    def opened(self) -> dict[str, Engine]:
        """The open memories."""
        slots = list(self._slots.items())  # a copy, since threads call this too
        done = {name: slot.opening for name, slot in slots if slot.opening.done()}
        good = {name: task.result() for name, task in done.items() if not _failed(task)}
        return {DEFAULT: self.default, **good}

    def disk_bytes(self, name: str) -> int:
        """Size of all files of a memory; 0 for one in RAM."""
        folder = self.default.folder if name == DEFAULT else self._path(name)
        if folder is None:
            return 0
        total = 0
        for path in folder.rglob("*"):
            with suppress(OSError):  # it may have been replaced meanwhile
                total += path.stat().st_size if path.is_file() else 0
        return total

    def not_ready(self) -> str | None:
        """Why the service cannot accept work; None if it can."""
        for engine in self.opened().values():
            if why := engine.not_ready():
                return why
        if self._folder is None or not self._folder.exists() or self.default.read_only:
            return None
        return why_full(self._folder, self.options.disk_free)  # new memories are created here

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Engine]:
        """A memory, which stays open during the block."""
        if name == DEFAULT:
            yield self.default
            return
        self._check(name)
        slot = self._slots.get(name) or self._begin(name)
        self._slots.move_to_end(name)
        slot.users += 1
        try:
            yield await slot.engine()
        finally:
            slot.users -= 1

    async def create(self, name: str) -> None:
        """Create an empty memory."""
        if self._folder is None or self._opener is None:
            raise Problem(
                409, "This service has one memory. For more, start it with --memories FOLDER."
            )
        names = self.names()
        if name in names or name in self._slots or name in self._going:
            raise Problem(409, f"There is a memory {name!r} already.")
        if len(names) > self.options.memories:
            raise Problem(
                409, f"There are {self.options.memories} memories, which is as many as may be."
            )
        slot = self._begin(name)

        async def finish() -> None:
            await slot.engine()
            self.default.audit.add("created", memory=name)

        await _even_if_nobody_waits(finish())

    async def delete(self, name: str) -> None:
        """Delete a memory with everything in it, after its current requests."""
        if name == DEFAULT:
            raise Problem(409, "The first memory stays for as long as the service runs.")
        self._check(name)
        self._going.add(name)
        await _even_if_nobody_waits(self._delete(name))

    def stop_soon(self) -> None:
        """Open no more memories, interrupt long jobs and end streams. From any thread."""
        self._stopping = True
        for engine in self.opened().values():
            engine.stop_soon()

    async def close(self) -> None:
        """Finish all queues, and close every memory."""
        self.stop_soon()
        for slot in list(self._slots.values()):
            await asyncio.wait([slot.opening])
        for name in self.opened():
            if name in self._slots:  # not the default memory, nor one that was deleted meanwhile
                await self._let_go(name)
        if self._closing:
            await asyncio.wait(self._closing.values())
        self._slots.clear()
        await asyncio.to_thread(self.default.close)

    # Private

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / name

    def _check(self, name: str) -> None:
        known = MEMORY_NAME.fullmatch(name) and self._folder is not None
        if not known or name in self._going or not (self._path(name) / FILE).exists():
            raise Problem(404, "There is no such memory.")
        if self._stopping:
            raise Problem(503, STOPPING, retry_after=5)

    def _begin(self, name: str) -> _Slot:
        """Start opening a memory; an idle one is closed first if too many are open."""
        before: list[asyncio.Task[None]] = []
        if len(self._slots) >= self.options.open_memories:
            idle = next((name for name, slot in self._slots.items() if slot.idle), None)
            if idle is None:
                raise Busy(
                    f"The {self.options.open_memories} memories that may be open at once are at "
                    "work; ask again later.",
                    2,
                )
            before.append(self._let_go(idle))
        if name in self._closing:
            before.append(self._closing[name])
        slot = self._slots[name] = _Slot(asyncio.ensure_future(self._open(name, before)))

        def done(task: asyncio.Task[Engine]) -> None:
            if _failed(task) and self._slots.get(name) is slot:
                del self._slots[name]  # the next request tries again

        slot.opening.add_done_callback(done)
        return slot

    async def _open(self, name: str, before: list[asyncio.Task[None]]) -> Engine:
        if before:
            await asyncio.wait(before)
        assert self._opener is not None
        classifier = await asyncio.to_thread(self._opener, self._path(name))
        engine = await asyncio.to_thread(Engine, classifier, self.options, self.default.intake)
        engine.broadcast.start()
        return engine

    def _let_go(self, name: str) -> asyncio.Task[None]:
        """Close an idle memory."""
        engine = self._slots.pop(name).opening.result()

        async def close() -> None:
            try:
                await asyncio.to_thread(engine.close)
            except AnytimeError as error:  # the journal has everything, so nothing is lost
                log.error("the memory %s was closed without a checkpoint: %s", name, error)
            finally:
                self._closing.pop(name, None)
            await asyncio.to_thread(_give_back)

        task = asyncio.ensure_future(close())
        self._closing[name] = task
        return task

    async def _delete(self, name: str) -> None:
        try:
            if (slot := self._slots.get(name)) is not None:
                await asyncio.wait([slot.opening])
                if not _failed(slot.opening):
                    slot.opening.result().stop_soon()
                    while slot.users:
                        await asyncio.sleep(0.02)
                    if self._slots.get(name) is slot:  # not closed meanwhile
                        await self._let_go(name)
            if name in self._closing:
                await asyncio.wait([self._closing[name]])
            self.on_deleted(name)
            await asyncio.to_thread(_remove, self._path(name))
            self.default.audit.add("deleted", memory=name)
        finally:
            self._going.discard(name)


async def _even_if_nobody_waits(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work even if the caller is cancelled."""
    await asyncio.shield(asyncio.ensure_future(work))


def _failed(task: asyncio.Task[Engine]) -> bool:
    return task.cancelled() or task.exception() is not None


def _remove(folder: Path) -> None:
    """Rename, then delete: a partly deleted folder is not mistaken for a memory after a crash."""
    going = folder.with_name(f"{DELETED}{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(going)
        shutil.rmtree(going)
    except OSError as error:
        raise StoreError(f"The memory in {folder} cannot be removed: {error}.") from error


def _sweep(folder: Path) -> None:
    """Finish deletions that a crash interrupted."""
    for left in folder.glob(f"{DELETED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _give_back() -> None:
    """Return freed memory to the operating system, if the C library supports it."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
