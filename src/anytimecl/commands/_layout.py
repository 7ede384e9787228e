"""The labels that `anytimecl learn` finds in a folder, and warnings about them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from anytimecl.commands._screen import counted, printable
from anytimecl.labels import UNSEEN, visible

if TYPE_CHECKING:
    from anytimecl.images import ImageRef

_DATE = re.compile(r"(19|20)\d\d([-_. ]?(0?[1-9]|1[0-2]|[A-Za-z]{3,9}))?([-_. ]?[0-3]?\d)?")
_NO_LABELS = frozenset(
    "inbox unsorted unlabelled unlabeled misc miscellaneous other others new untitled dcim camera "
    "photos pictures images downloads screenshots todo tmp temp various unknown train test val "
    "validation".split()
)
_SHOWN = 5  # names per warning


def counts_of(refs: Sequence[ImageRef]) -> dict[str, int]:
    """Number of images of each label, the largest first."""
    return dict(Counter(ref.label for ref in refs if ref.label is not None).most_common())


def doubts_about(refs: Sequence[ImageRef], known: Iterable[str] = ()) -> list[str]:
    """Warnings about the labels of a folder, in sentences.

    `known` are the labels of the memory.
    """
    labels, stored = list(counts_of(refs)), set(known)
    told = [told for check in _CHECKS for told in check(labels, refs)]
    return [*told, *_unseen(labels, stored), *cases_known(labels, stored)]


def _depths(labels: Sequence[str], refs: Sequence[ImageRef]) -> Iterator[str]:
    depths = Counter(ref.name.count("/") for ref in refs if ref.label is not None)
    if len(depths) > 1:
        told = ", ".join(
            f"{counted(count, 'image')} {depth} deep" for depth, count in sorted(depths.items())
        )
        yield f"The folders are of mixed depth ({told}): the folder that holds a file is its label."


def _dates(labels: Sequence[str], refs: Sequence[ImageRef]) -> Iterator[str]:
    if dates := [label for label in labels if _DATE.fullmatch(label)]:
        yield f"Some labels look like dates: {_some(dates)}."


def _cases(labels: Sequence[str], refs: Sequence[ImageRef]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(_folded(label), []).append(label)
    for names in alike.values():
        if len(names) > 1:
            yield f"Some labels differ only in case or spaces: {_some(names)}."


def cases_known(labels: Sequence[str], known: Iterable[str]) -> Iterator[str]:
    """Warnings about new labels that look like known ones, but for their case."""
    stored = set(known)
    alike = {_folded(label): label for label in stored}
    for label in labels:
        other = alike.get(_folded(label))
        if other is not None and " ".join(label.split()) not in stored:
            what = "characters that cannot be seen" if visible(label) == visible(other) else "case"
            yield f"{label!r} differs only in {what} from {other!r}, which the memory knows."


def _folded(label: str) -> str:
    return visible(label).casefold()


def _unseen(labels: Sequence[str], stored: Container[str]) -> Iterator[str]:
    new = (label for label in labels if " ".join(label.split()) not in stored)
    if found := [label for label in new if UNSEEN.keys() & set(map(ord, label))]:
        yield f"Some labels have characters that cannot be seen: {_some(found)}."


def _inboxes(labels: Sequence[str], refs: Sequence[ImageRef]) -> Iterator[str]:
    if found := [label for label in labels if label.casefold().strip(" _-.") in _NO_LABELS]:
        yield f"Some folders look like places for images without a label: {_some(found)}."


_CHECKS = (_depths, _dates, _cases, _inboxes)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN:,} more"


def warn_of_case(label: str, known: Sequence[str]) -> None:
    """Tell of a label that is about to be given, if it looks like a known one."""
    for told in cases_known([label], known):
        told = f"{told} `anytimecl merge` makes them one, `anytimecl undo` takes this back."
        typer.echo(printable(told), err=True)
