"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anytimecl_lab.metrics import spread

NONE = "–"


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"### {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def shown(values: Sequence[float]) -> str:
    """Mean and spread over seeds; a dash without values."""
    return str(spread(values)) if values else NONE
