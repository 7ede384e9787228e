"""A table as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anytimecl_lab.metrics import spread

NONE = "–"


@dataclass(frozen=True)
class Table:
    """Headings and rows, as text."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        """As Markdown has it."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"### {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def shown(values: Sequence[float]) -> str:
    """Mean and spread over seeds, where there are any."""
    return str(spread(values)) if values else NONE
