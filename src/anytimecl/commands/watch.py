"""`anytimecl watch`: learns images that are put into labels' folders."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _common, _screen
from anytimecl.errors import ImageError, LabelError

if TYPE_CHECKING:
    from anytimecl.images import ImageRef

# Learns an image with its label; returns its id and whether it was already learned.
Teach = Callable[["ImageRef", str, str], tuple[int, bool]]
_Stamp = tuple[int, int, int]


def register(main: typer.Typer) -> None:
    """Add `anytimecl watch` to the program."""
    main.command("watch")(watch)


def watch(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder of <label>/<file>.")
    ],
    memory: Annotated[
        Path | None, typer.Option("--memory", metavar="M", help="Folder of the memory.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Teach a running service instead. Its token: ANYTIMECL_WRITE_TOKEN.",
        ),
    ] = None,
    every: Annotated[
        float, typer.Option(min=0.05, metavar="SECONDS", help="How often to look.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Learn what is there, and end.")] = False,
    model: _common.ModelOption = None,
) -> None:
    """Learn every image that is moved or copied into a label's folder.

    A file is learned, once per label, when it has not changed between two scans. Files removed from
    a folder stay learned: `anytimecl forget` forgets them. Ctrl-C stops it.
    """
    if (memory is None) == (url is None):
        raise typer.BadParameter("Say what to teach: either --memory or --url, not both.")
    with _teacher(memory, url, model) as teach, _common.asked_to_stop() as stopping:
        typer.echo(f"Watching {folder}. Ctrl-C ends it.", err=True)
        watcher = Watcher(folder, teach)
        while True:
            for line in watcher.look():
                typer.echo(_screen.printable(line))
            if stopping() or (once and not watcher.waiting):
                return
            time.sleep(every)


class Watcher:
    """State of the watched files."""

    def __init__(self, folder: Path, teach: Teach) -> None:
        self._folder, self._teach = folder, teach
        self._seen: dict[str, _Stamp] = {}  # at the last scan
        self._dealt: dict[str, _Stamp] = {}  # learned, or reported as unusable

    @property
    def waiting(self) -> bool:
        """Whether a file may still be changing."""
        return self._seen != self._dealt

    def look(self) -> Iterator[str]:
        """Learn new files, and yield a line about each."""
        from anytimecl.images import iter_images

        now: dict[str, _Stamp] = {}
        for ref in iter_images(self._folder):
            stamp = _stamp(ref.root / ref.name)
            if ref.label is None or stamp is None:
                continue
            now[ref.name] = stamp
            if self._dealt.get(ref.name) != stamp and self._seen.get(ref.name) == stamp:
                yield from self._learn(ref, ref.label)
                self._dealt[ref.name] = stamp
        self._seen = now
        self._dealt = {name: stamp for name, stamp in self._dealt.items() if name in now}

    def _learn(self, ref: ImageRef, label: str) -> Iterator[str]:
        from anytimecl.inbox import file_key
        from anytimecl.labels import clean_label

        try:
            name = clean_label(label)
            key = file_key(hashlib.sha256(ref.read()).digest(), name)
            example, known = self._teach(ref, name, key)
        except (ImageError, LabelError) as error:
            yield f"not learned: {error}"
            return
        yield f"{'known' if known else 'learned'} {example}: {ref.name} as {name}"


@contextmanager
def _teacher(memory: Path | None, url: str | None, model: str | None) -> Iterator[Teach]:
    if url is not None:
        from anytimecl.client import Client

        client = Client(url, token=os.environ.get("ANYTIMECL_WRITE_TOKEN"))

        def over_http(ref: ImageRef, label: str, key: str) -> tuple[int, bool]:
            ref.load()  # raises for broken files
            lesson = client.learn(ref.root / ref.name, label, key=key)
            return lesson.id, lesson.repeated

        yield over_http
        return
    assert memory is not None
    with _common.owning(memory, model, lambda settings: settings) as classifier:

        def here(ref: ImageRef, label: str, key: str) -> tuple[int, bool]:
            known = classifier.memory.has_key(key)
            if known is not None:
                return known, True
            return classifier.learn_one(ref.root / ref.name, label, key=key).id, False

        yield here


def _stamp(path: Path) -> _Stamp | None:
    """Values that change with a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
