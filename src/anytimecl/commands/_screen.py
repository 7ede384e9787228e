"""Terminal output: tables to stdout, progress and reports to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from anytimecl.commands._words import in_options

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 20  # failures printed one by one
_EVERY = 10.0  # seconds between progress lines in a log


def printable(text: str) -> str:
    r"""Text with line breaks and terminal control characters escaped.

    >>> printable("a\x1b[2J.png")
    'a\\x1b[2J.png'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def percent(value: float) -> str:
    """A fraction as a percentage.

    >>> percent(0.8767)
    '87.7 %'
    """
    return f"{100 * value:.1f} %"


def size(count: int) -> str:
    """A number of bytes with a unit.

    >>> size(999), size(7_300_000)
    ('999 bytes', '7.3 MB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def counted(count: int, one: str, several: str | None = None) -> str:
    """A number with its noun in singular or plural.

    >>> counted(1, "image"), counted(2000, "image")
    ('1 image', '2,000 images')
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Container[str] = ()
) -> None:
    """Print a table to stdout, as wide as the terminal, or 80 columns.

    Columns with headings in `numbers` are aligned to the right.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        if heading in numbers:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    _show(table, rows)


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one per line."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    _show(table, facts)


def _show(table: Table, rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.text import Text

    for row in rows:  # as Text, so that brackets are not markup
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)


def report(failures: Sequence[str], what: str) -> None:
    """Print failures to stderr, one per line."""
    if not failures:
        return
    typer.echo(f"{what} ({len(failures):,}):", err=True)
    for failure in failures[:_SHOWN]:
        typer.echo(f"  {printable(in_options(failure))}", err=True)
    if len(failures) > _SHOWN:
        typer.echo(f"  and {len(failures) - _SHOWN:,} more", err=True)


class Advance(Protocol):
    """Reports progress."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """A progress bar on a terminal, or lines in a log; on stderr."""
    with (_bar if sys.stderr.isatty() else _lines)(what) as advance:
        yield advance


@contextmanager
def _bar(what: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=9),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None, note="")
        yield lambda done, total, note="": bar.update(
            task, completed=min(done, total), total=total, note=note
        )


@contextmanager
def _lines(what: str) -> Iterator[Advance]:
    said = time.monotonic()

    def advance(done: int, total: int, note: str = "") -> None:
        nonlocal said
        if time.monotonic() - said >= _EVERY:
            said = time.monotonic()
            told = f"{what}: {min(done, total):,} of {total:,}"
            typer.echo(f"{told}, {note}" if note else told, err=True)

    yield advance
