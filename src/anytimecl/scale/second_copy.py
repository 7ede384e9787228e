"""A second copy of every example: on another disk, in a store of fsspec, or in a log service.

Examples are written as lines of JSON when a leaf has stored them, before they are acknowledged. The
leaves' memories are authoritative; the copy is for the loss of their disk.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from anytimecl.closing import Closing
from anytimecl.errors import StoreError
from anytimecl.memory import StoreWarning
from anytimecl.scale.copy_places import SEGMENT_BYTES, CopyPlace, FolderPlace, place_at
from anytimecl.scale.leaf import Former, LeafLesson

T = TypeVar("T")
ABOUT = "copy.json"
# Version 1 has neither the tree's identity nor the list of replaced files.
VERSION, READABLE = 2, (1, 2)
PAUSE = 2.0  # seconds until an example that is being written counts as missing
TOGETHER = 1000  # examples at most in one write
RECENT = 10_000  # latest examples, whose retries add no line


class SecondCopy(Closing):
    """Writes the second copy.

    In a folder, lines are appended to a file and synced; in a store, each write is an object.
    Pending examples are written together. Files are overwritten only to forget: each opening has
    its own names.

    The copy is `whole` if it has every example of this `tree`; otherwise it gets them all, and
    `declare_whole` replaces what was there before. `noted` is the last owner that wrote here
    according to the tree: examples may have been learned while the tree had another copy, or while
    this place was not mounted.

    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> with SecondCopy(place, "a tree", owner=1, meta={"fingerprint": "f"}) as copy:
    ...     copy.put(LeafLesson(b"record", "cat", key="1")).result()
    ...     copy.declare_whole()
    >>> [lesson.label for lesson in lessons_in(place)]
    ['cat']
    """

    def __init__(
        self,
        address: str,
        tree: str,
        owner: int,
        meta: Mapping[str, str],
        *,
        noted: int | None = None,
    ) -> None:
        self.address = address
        self._place = place_at(address)
        if isinstance(self._place, FolderPlace):
            self._place.make()
        self._tree, self._owner, self._meta = tree, owner, dict(meta)
        about = _about(self._place) if self._place.has(ABOUT) else None
        if about is not None and about.get("tree", tree) != tree:
            raise StoreError(
                f"{address} holds the lessons of another tree, which is all that is left of it "
                "should its disk be lost: choose another place for the second copy."
            )
        self.whole = about is not None and noted is not None and about.get("owner", 0) >= noted
        self._replaced: list[str] = about.get("replaced", []) if about else []
        if not self.whole:
            self._replaced = self._place.names()
        # Names in the order of owners, and never those of another opening: a tree that was brought
        # back from a backup may number its owners once more.
        self._opening = f"{owner:08d}-{time.time_ns() // 1000:016d}-{secrets.token_hex(4)}"
        self._number = 0
        self._queue: SimpleQueue[tuple[LeafLesson, Future[None]] | None] = SimpleQueue()
        self._recent: dict[tuple[str | None, str], None] = {}  # keys and labels, as they came
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="anytimecl-copy", daemon=True)
        self._thread.start()

    def declare_whole(self) -> None:
        """Mark the copy as complete; earlier files are ignored, but not deleted.

        They may have examples that the tree has lost since.
        """
        told = {"version": VERSION, "tree": self._tree, "owner": self._owner, "meta": self._meta}
        self._place.write(ABOUT, json.dumps({**told, "replaced": self._replaced}).encode())
        self.whole = True

    def put(self, lesson: LeafLesson) -> Future[None]:
        """Write an example; returns a future."""
        future: Future[None] = Future()
        self._queue.put((lesson, future))
        if not self._thread.is_alive():  # closed, and maybe before it has seen this one
            self._refuse_rest()
        return future

    def have(self, lesson: LeafLesson) -> Future[None]:
        """`put`, unless it was written recently."""
        if (lesson.key, lesson.label) not in self._recent:
            return self.put(lesson)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def forget(self, label: str) -> int:
        """Delete the examples of a label, permanently; returns their number.

        Includes earlier lines, with other labels, of images that have this label now.
        """
        with self._writing:
            try:
                self._check_there()
                self._recent.clear()
                self._number += 1  # what comes next is another file
                return self._forgotten(label)
            except (OSError, StoreError) as error:
                told = f"The second copy ({self.address}) has not forgotten {label!r}: {error}."
                raise StoreError(f"{told} Forget it again when it is there.") from error

    def _forgotten(self, label: str) -> int:
        names = self._place.names()
        last: dict[int | None, str] = {}
        seen: set[str | None] = set()
        for line in (line for name in names for line in self._lines(name)):
            each = _lesson(line)
            if each is not None and (each.key is None or each.key not in seen):  # no late retry
                last[each.content] = each.label
                seen.add(each.key)
        images = {image for image, its in last.items() if its == label and image is not None}
        gone = 0
        for name in names:
            lines = self._lines(name)
            kept = [line for line in lines if _stays(line, label, images)]
            if len(kept) < len(lines):
                gone += len(lines) - len(kept)
                self._place.write(name, b"".join(kept))
        return gone

    def _lines(self, name: str) -> list[bytes]:
        return self._place.read(name).splitlines(keepends=True)

    def _refuse_rest(self) -> None:
        """Fail the pending examples, since nothing is written any more."""
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    why = "it is closed. Send the lesson again under the same key."
                    item[1].set_exception(StoreError(f"{self.address} was not written to: {why}"))

    def close(self) -> None:
        """Write pending examples, and close."""
        self._queue.put(None)
        self._thread.join()
        self._refuse_rest()

    def _run(self) -> None:
        while some := self._next():
            try:
                with self._writing:
                    self._write(b"".join(_line(lesson) for lesson, _ in some))
                    self._note(lesson for lesson, _ in some)
            except Exception as error:
                self._number += 1  # a partial line must not spoil the next one
                told = (
                    f"The lesson is not in the second copy ({self.address}): {error}. Send it "
                    "again under the same key."
                )
                for _, future in some:
                    future.set_exception(StoreError(told))
            else:
                for _, future in some:
                    future.set_result(None)

    def _note(self, lessons: Iterable[LeafLesson]) -> None:
        """Remember examples that were written."""
        for lesson in lessons:
            if lesson.key is not None:
                self._recent[lesson.key, lesson.label] = None
        for oldest in list(islice(self._recent, max(0, len(self._recent) - RECENT))):
            del self._recent[oldest]

    def _next(self) -> list[tuple[LeafLesson, Future[None]]]:
        """Pending examples; empty at the end."""
        some: list[tuple[LeafLesson, Future[None]]] = []
        while len(some) < TOGETHER and (not some or not self._queue.empty()):
            item = self._queue.get()
            if item is None:
                if some:
                    self._queue.put(None)  # after these
                break
            some.append(item)
        return some

    def _check_there(self) -> None:
        """Raise StoreError if the folder was moved or replaced."""
        if self.whole and isinstance(self._place, FolderPlace) and not self._place.has(ABOUT):
            raise StoreError(f"is its disk mounted? {ABOUT} is not there any more")

    def _write(self, lines: bytes) -> None:
        self._check_there()
        if self._place.append(self._name(), lines) >= SEGMENT_BYTES:
            self._number += 1

    def _name(self) -> str:
        return f"lessons-{self._opening}-{self._number:010d}.jsonl"


def meta_of(address: str) -> dict[str, str]:
    """Metadata of a copy: settings, spec and fingerprint of its tree."""
    return dict(_about(place_at(address))["meta"])


def _about(place: CopyPlace) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(place.read(ABOUT))
        if told["version"] not in READABLE:
            raise ValueError(f"version {told['version']}")
        dict(told["meta"])
        return told
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"There is no copy of a tree's lessons in {place}: {error}.") from error


def lessons_in(address: str) -> Iterator[LeafLesson]:
    """Every example of a copy, in order; each has a key, so that it may be learned again."""
    place = place_at(address)
    replaced = set(_about(place).get("replaced", ()))
    for name in place.names():
        if name in replaced:
            continue
        damaged = 0
        for number, line in enumerate(place.read(name).splitlines(keepends=True)):
            lesson = _lesson(line)
            if lesson is not None:
                yield lesson if lesson.key else lesson._replace(key=f"{name} {number}")
            elif line.endswith(b"\n"):  # else a crash has cut it short: it never counted
                damaged += 1
        if damaged:
            told = f"{damaged:,} lessons in {place}, {name}, are damaged and left out."
            warnings.warn(told, StoreWarning, stacklevel=2)


def not_in(address: str, keys: Iterable[str]) -> set[str]:
    """Those of these keys that are not in a copy."""
    left = set(keys)
    for pause in (0.0, PAUSE):  # the latest may still be being written
        time.sleep(pause if left else 0.0)
        for lesson in lessons_in(address) if left else ():
            left.discard(lesson.key or "")
    return left


def then(learned: Future[T], lesson: LeafLesson, copy: SecondCopy) -> Future[T]:
    """A future for a learned example that is also in the copy; refused ones are not written.

    For a retry of an example whose image was learned again since, the newer one is written: a
    retry in the copy would otherwise undo it when the copy is read.
    """
    made: Future[T] = Future()

    def copied(there: Future[None]) -> None:
        error = there.exception()
        if error is not None:
            made.set_exception(error)
        else:
            made.set_result(learned.result())

    def done(first: Future[T]) -> None:
        error = first.exception()
        if error is not None:
            made.set_exception(error)
            return
        told = first.result()
        if not isinstance(told, Former):
            copy.put(lesson).add_done_callback(copied)
        elif told.now is not None:
            copy.have(told.now).add_done_callback(copied)
        else:  # its leaf cannot read it either
            made.set_result(told)

    learned.add_done_callback(done)
    return made


# ---------------------------------------------------------------------------------------- lines


def _line(lesson: LeafLesson) -> bytes:
    told = lesson._asdict() | {"record": base64.b64encode(lesson.record).decode()}
    text = json.dumps(told).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _lesson(line: bytes) -> LeafLesson | None:
    try:
        checksum, _, text = line.removesuffix(b"\n").partition(b" ")
        if not line.endswith(b"\n") or int(checksum, 16) != zlib.crc32(text):
            return None
        told = json.loads(text)
        chosen = told["candidates"]
        return LeafLesson(
            base64.b64decode(told["record"]),
            told["label"],
            None if chosen is None else tuple(chosen),
            told["key"],
            told.get("content"),  # version 1 has none
        )
    except (ValueError, KeyError):
        return None


def _stays(line: bytes, label: str, images: set[int]) -> bool:
    lesson = _lesson(line)
    return lesson is not None and lesson.label != label and lesson.content not in images
