"""The demo on a terminal, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from anytimecl.demo.story import DemoLook


class Terminal:
    """Displays the demo with rich.

    >>> Terminal(Console(width=60)).say("It begins.")
    It begins.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    def chapter(self, title: str, text: str) -> None:
        """A heading and a sentence."""
        self.console.print(f"\n[bold]{title}[/bold]")
        self.console.print(text, highlight=False)

    @contextmanager
    def track(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar."""
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        with Progress(*columns, TimeElapsedColumn(), console=self.console) as progress:
            task = progress.add_task(what, total=total)
            yield lambda steps: progress.advance(task, steps)

    def looked(self, looks: Sequence[DemoLook]) -> None:
        """A table of the evaluations before the streams and after each."""
        table = Table(
            caption="Right answers; in brackets, those of the tuned model alone. Unchanged: every "
            "probability over labels never taught, bit for bit, since the first day."
        )
        for name in ("", "learned", "lights", "digits", "never taught", "unchanged"):
            table.add_column(name, justify="right" if name else "left")
        for look in looks:
            if look.whole:
                scores = (f"{s.blend:.0%} ({s.tuned:.0%})" for s in (look.lights, look.digits))
                same = "yes" if look.untaught_same else "NO"
                untaught = f"{look.untaught.blend:.0%}"
                table.add_row(look.when, str(look.learned), *scores, untaught, same)
        self.console.print(table)

    def say(self, text: str) -> None:
        """A result in words."""
        self.console.print(text, highlight=False, markup=False)
