"""Snapshots of a tree: copy while it learns, restore, verify."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anytimecl.errors import AnytimeError, StoreError
from anytimecl.files import replacing
from anytimecl.memory import open_memory, verify
from anytimecl.memory.contract import Progress
from anytimecl.memory.verification import Report
from anytimecl.opening import PRIOR
from anytimecl.scale.leaf import keys_in
from anytimecl.scale.leaf_host import TAIL
from anytimecl.scale.leaves import holds_memory, leaf_folder
from anytimecl.scale.routes import Routes
from anytimecl.scale.second_copy import not_in
from anytimecl.scale.told import FILE as LABELS
from anytimecl.scale.tree_folder import (
    COPIED,
    COPY,
    FILE,
    IDENTITY,
    OWNER,
    counts_in,
    write_counts,
)
from anytimecl.transfer import copy_memory

TIMES = 5  # attempts, if leaves split meanwhile
OF_ONE = (OWNER, IDENTITY, COPY, COPIED)  # metadata of the routes that is not copied


def snapshot(folder: Path, to: Path) -> int:
    """Copy the tree in `folder` into the new folder `to`, even while it learns.

    Leaves are copied at different times; everything acknowledged before the call is included. `to`
    appears atomically, and is a tree. Returns the number of leaves. Leaves that are in use must be
    on this machine; `TreeClassifier.snapshot` copies any.
    """
    for _ in range(TIMES):
        routes, told = _routes(folder)
        leaves = routes.leaves()
        try:
            with making(to) as part:
                for leaf in leaves:
                    copy_memory(leaf_folder(folder, leaf), leaf_folder(part, leaf))
                finish(part, folder, routes, told)
                if _routes(folder)[0].leaves() != leaves:
                    raise StoreError("A leaf has split: the copies are of no one moment.")
            return len(leaves)
        except (AnytimeError, OSError):
            if _routes(folder)[0].leaves() == leaves:
                raise
    raise StoreError(f"Leaves of {folder} split all the time: try again when there is less to do.")


def finish(part: Path, folder: Path, routes: Routes, told: Mapping[str, str]) -> None:
    """Complete a tree from copies of its leaves; `told` is the metadata of its routes."""
    for name in (LABELS, TAIL, PRIOR):
        if (folder / name).exists():
            shutil.copyfile(folder / name, part / name)
    counts = {}
    for leaf in routes.leaves():
        with open_memory(leaf_folder(part, leaf), read_only=True) as store:
            counts[leaf] = len(store)
    write_counts(part, counts)
    # It is a separate tree, which must not write to the other one's second copy.
    own = {name: value for name, value in told.items() if name not in OF_ONE}
    routes.save(part / FILE, {**own, OWNER: "0"})


def restore(source: Path, to: Path) -> int:
    """Restore a snapshot to the new folder `to`; returns the number of leaves."""
    return snapshot(source, to)


def _routes(folder: Path) -> tuple[Routes, dict[str, str]]:
    if not (folder / FILE).exists():
        raise StoreError(f"There is no tree in {folder}.")
    return Routes.load(folder / FILE)


@contextmanager
def making(to: Path) -> Iterator[Path]:
    """A draft that becomes the new folder `to` unless the block raises."""
    if to.is_file() or (to.exists() and any(to.iterdir())):
        raise StoreError(f"{to} is there already: choose a new folder.")
    with replacing(to) as draft:
        draft.mkdir(parents=True)
        yield draft


@dataclass(frozen=True)
class TreeReport:
    """Result of `verify_tree`."""

    leaves: dict[int, Report]
    problems: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems and all(report.ok for report in self.leaves.values())

    def __str__(self) -> str:
        count = sum(report.examples for report in self.leaves.values())
        lines = [f"{count:,} examples in {len(self.leaves):,} leaves checked"]
        lines += [f"leaf {leaf}: {each}" for leaf, each in self.leaves.items() if not each.ok]
        return "\n".join([*lines, *self.problems])


def _not_copied(copy: str, keys: Iterable[str]) -> list[str]:
    try:
        left = not_in(copy, keys)
    except (OSError, StoreError) as error:
        return [f"the second copy cannot be read: {error}"]
    if not left:
        return []
    count = f"{len(left):,} examples are" if len(left) > 1 else "An example is"
    told = f"{count} not in the second copy ({copy}), such as that with the key {min(left)!r}: "
    return [told + "send it again under its key, or open the tree with another copy_to."]


def verify_tree(folder: Path, progress: Progress | None = None) -> TreeReport:
    """Verify every leaf, the number of its examples, and that keys are unique.

    Leaves may learn meanwhile, on this machine; `TreeClassifier.verify` checks leaves anywhere.
    """
    for _ in range(TIMES):
        (routes, noted), counted = _routes(folder), counts_in(folder)

        def look(leaf: int, counted: Mapping[int, int] = counted) -> tuple[Report, list[str]]:
            place = leaf_folder(folder, leaf)
            if not holds_memory(place):
                least = counted.get(leaf)
                held = "an unknown number of examples" if least is None else f"at least {least:,}"
                raise StoreError(f"{place} (leaf {leaf}, of {held}) is missing")
            with open_memory(place, read_only=True) as store:
                return verify(store), keys_in(store)

        report = checked(routes.leaves(), counted, look, progress, noted.get(COPY))
        if report.ok or _routes(folder)[0].leaves() == routes.leaves():
            return report  # else a leaf has split, and its children are to be looked at
    return report


def checked(
    leaves: Sequence[int],
    counted: Mapping[int, int],
    look: Callable[[int], tuple[Report, list[str]]],
    progress: Progress | None = None,
    copy: str | None = None,
) -> TreeReport:
    """Verify leaves and the second `copy`; `look` returns a leaf's report and keys."""
    reports: dict[int, Report] = {}
    problems: list[str] = []
    keys: Counter[str] = Counter()
    for done, leaf in enumerate(leaves, 1):
        try:
            reports[leaf], own = look(leaf)
        except (StoreError, ConnectionError) as error:  # which says nothing of the others
            problems.append(str(error))
        else:
            keys.update(own)
            held = reports[leaf].examples
            if held < counted.get(leaf, 0):
                problems.append(f"leaf {leaf} holds {held:,} examples, and held {counted[leaf]:,}")
        if progress is not None:
            progress(done, len(leaves))
    twice = [key for key, count in keys.items() if count > 1]
    if twice:
        problems.append(f"{len(twice):,} keys are in more than one leaf, such as {twice[0]!r}")
    if copy is not None:
        problems += _not_copied(copy, keys)
    return TreeReport(reports, tuple(problems))
