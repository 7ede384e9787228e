"""A stage that keeps what is told on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from anytimecl.demo.story import DemoLook


class Quiet:
    """Nothing is shown; how far each bar went is kept."""

    def __init__(self) -> None:
        self.chapters: list[str] = []
        self.bars: dict[str, tuple[int, int]] = {}  # what -> steps taken, of how many
        self.said: list[str] = []
        self.rows = 0

    def chapter(self, title: str, text: str) -> None:
        self.chapters.append(title)

    @contextmanager
    def track(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        self.bars[what] = 0, total

        def step(steps: int) -> None:
            self.bars[what] = self.bars[what][0] + steps, total

        yield step

    def looked(self, looks: Sequence[DemoLook]) -> None:
        self.rows = len(looks)

    def say(self, text: str) -> None:
        self.said.append(text)
