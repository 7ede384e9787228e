"""A tree's folder: ownership, routes, counts, and creation and deletion of leaves."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from anytimecl.closing import Closing
from anytimecl.errors import StoreError, reason
from anytimecl.files import make_folder, replacing, shown, sync
from anytimecl.memory import StoreWarning
from anytimecl.memory.lock import OwnerLock
from anytimecl.memory.opening import refuse_addresses
from anytimecl.scale.leaves import holds_memory, leaf_folder
from anytimecl.scale.routes import Routes, read_meta

FILE = "tree.safetensors"
LOCK = "tree.lock"
COUNTS = "counts.json"
ASIDE = "set-aside"  # unknown folders are moved here, and never deleted automatically
# Metadata of the routes:
OWNER = "owner"  # the fencing number
COPY = "copy"  # address of the second copy
COPIED = "copied"  # the last owner that wrote there
IDENTITY = "tree"  # identity of the tree, also stored in the second copy
UNKNOWN = (
    "the tree does not know it. Most likely it is of a split that was cut short, and the tree has "
    "all of its examples."
)
UNREAD = "it has split, but some of its examples could not be read and are in no other leaf."
REMAINS = "it is what is left of a leaf that is lost."


class TreeInUse(StoreError):
    """Another process owns the tree."""


class TreeFolder(Closing):
    """Owned from construction to `close`.

    A lock excludes a second owner. If it fails (its file was removed, or a network disk lost it),
    the owner number is a fencing token: each owner writes a higher one with the routes, and one
    that finds another number there stops writing and deleting.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "tree"
    >>> first = TreeFolder(place)
    >>> TreeFolder(place)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    anytimecl.scale.tree_folder.TreeInUse: The tree in ... is in use by process ...
    >>> first.close()
    >>> TreeFolder(place).close()
    """

    def __init__(self, folder: Path) -> None:
        folder = folder.absolute()  # os.chdir must not change it
        if folder.is_file():
            raise StoreError(f"{shown(folder)} is a file: a tree is a folder. Choose another name.")
        refuse_addresses(folder)
        self.path = folder
        self.owner = 0  # until `take_over`
        try:
            make_folder(folder)
            self._lock = OwnerLock(folder / LOCK)
        except OSError as error:
            raise StoreError(
                f"The tree in {shown(folder)} cannot be opened: "
                f"{error.filename or 'its lock'}: {reason(error)}."
            ) from error
        except StoreError as error:
            holder = (folder / LOCK).read_text("ascii", "replace").strip() or "unknown"
            raise TreeInUse(
                f"The tree in {folder} is in use by process {holder}: close it there first. "
                "Nothing was changed."
            ) from error

    def close(self) -> None:
        """Release ownership."""
        self._lock.close()

    # --------------------------------------------------------------------------------- routes

    def load(self) -> tuple[Routes, dict[str, str]] | None:
        """The routes and their metadata; None if there is no tree yet."""
        if (self.path / FILE).exists():
            return Routes.load(self.path / FILE)
        found = [place.name for place in sorted(self.path.glob("leaf-*")) if holds_memory(place)]
        # A single first leaf may be left by an interrupted creation, which writes routes last.
        if found and found != [leaf_folder(self.path, 0).name]:
            raise StoreError(
                f"{self.path / FILE} is missing, and there are leaves: {', '.join(found)}. Without "
                "it nobody knows which image belongs to which: restore it from a backup."
            )
        return None

    def take_over(self, routes: Routes, meta: Mapping[str, str]) -> None:
        """Take ownership, by writing the next owner number."""
        self.owner = self._owner_on_disk() + 1
        self._write(routes, meta)

    def save(self, routes: Routes, meta: Mapping[str, str]) -> None:
        """Write the routes; StoreError if another owner has taken over."""
        self.check_owner()
        self._write(routes, meta)

    def check_owner(self) -> None:
        """Raise StoreError if another owner has taken over."""
        found = self._owner_on_disk()
        if found != self.owner:
            raise StoreError(
                f"The tree in {self.path} has another owner (number {found}; this one is number "
                f"{self.owner}): close it here. What was acknowledged is stored."
            )

    def noted(self, name: str) -> str | None:
        """Metadata of the routes, by name."""
        file = self.path / FILE
        return read_meta(file).get(name) if file.exists() else None

    def _owner_on_disk(self) -> int:
        if not (self.path / FILE).exists():
            return 0
        return int(read_meta(self.path / FILE).get(OWNER, 0))

    def _write(self, routes: Routes, meta: Mapping[str, str]) -> None:
        routes.save(self.path / FILE, {**meta, OWNER: str(self.owner)})

    # --------------------------------------------------------------------------------- counts

    def counts(self) -> dict[int, int]:
        """Stored numbers of examples by leaf, which are lower bounds."""
        return counts_in(self.path)

    def save_counts(self, counts: Mapping[int, int]) -> None:
        """Store the numbers of examples by leaf."""
        self.check_owner()
        write_counts(self.path, counts)

    def missing(self, leaves: Iterable[int]) -> dict[int, str]:
        """Leaves whose memory is missing, with a message for each."""
        counts = self.counts()
        return {
            leaf: f"{leaf_folder(self.path, leaf)} (leaf {leaf}, {_at_least(counts.get(leaf))})"
            for leaf in leaves
            if not holds_memory(leaf_folder(self.path, leaf))
        }

    def fewer(self, sizes: Mapping[int, int]) -> list[str]:
        """Messages about leaves with fewer examples than counted."""
        return [
            f"{leaf_folder(self.path, leaf)} (leaf {leaf}) holds {sizes[leaf]:,} examples, and "
            f"held {count:,}"
            for leaf, count in sorted(self.counts().items())
            if sizes.get(leaf, count) < count
        ]

    # -------------------------------------------------------------------------------- folders

    def draft(self, leaf: int) -> Path:
        """Temporary folder of a new leaf, unique for this owner."""
        return self.path / f".split-{self.owner}-{leaf:06d}"

    def make_way(self, leaf: int, why: str = UNKNOWN) -> None:
        """Move away a folder that has the name of a new leaf."""
        place = leaf_folder(self.path, leaf)
        if place.exists():
            self.set_aside(place, why)

    def adopt(self, leaf: int) -> None:
        """Rename a draft to its leaf's folder, which must not exist."""
        self.draft(leaf).rename(leaf_folder(self.path, leaf))
        sync(self.path)

    def drop_drafts(self) -> None:
        """Delete drafts of interrupted splits, which are copies of examples in leaves."""
        for place in self.path.glob(".split-*"):
            shutil.rmtree(place, ignore_errors=True)

    def tidy(self, routes: Routes) -> None:
        """Move away leaves that the routes do not name, left by interrupted splits."""
        self.drop_drafts()
        known = {leaf_folder(self.path, leaf) for leaf in routes.leaves()}
        for place in sorted(set(self.path.glob("leaf-*")) - known):
            self.set_aside(place)

    def set_aside(self, place: Path, why: str = UNKNOWN) -> None:
        """Move a folder to `ASIDE`, with a note."""
        (self.path / ASIDE).mkdir(exist_ok=True)
        number, to = 1, self.path / ASIDE / place.name
        while to.exists():
            number += 1
            to = self.path / ASIDE / f"{place.name}.{number}"
        os.rename(place, to)
        warnings.warn(
            f"{place} was put aside as {to}: {why} `anytimecl memory info` says what is in it; "
            "delete it when you are sure.",
            StoreWarning,
            stacklevel=2,
        )

    def has_aside(self) -> bool:
        """Whether there are folders in `ASIDE`, which `forget` does not reach."""
        return (self.path / ASIDE).is_dir() and any((self.path / ASIDE).iterdir())


def write_counts(folder: Path, counts: Mapping[int, int]) -> None:
    """Store the numbers of examples by leaf."""
    leaves = {str(leaf): max(0, counts[leaf]) for leaf in sorted(counts)}
    with replacing(folder / COUNTS) as draft:
        draft.write_text(json.dumps({"version": 1, "leaves": leaves}), "utf-8")


def counts_in(folder: Path) -> dict[int, int]:
    """Stored numbers of examples by leaf."""
    file = folder / COUNTS
    try:
        told = json.loads(file.read_bytes())["leaves"] if file.exists() else {}
        return {int(leaf): int(count) for leaf, count in told.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(f"{file} cannot be read ({error}).", StoreWarning, stacklevel=3)
        return {}


def _at_least(count: int | None) -> str:
    return "of an unknown number of examples" if count is None else f"at least {count:,} examples"
