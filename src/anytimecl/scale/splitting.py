"""Splitting of a leaf in two, atomically."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.scale.leaves import Leaves
from anytimecl.scale.routes import Routes
from anytimecl.scale.tree_folder import TreeFolder

ROOM = 30.0  # timeout in seconds for starting children


class Undecided(StoreError):
    """It is unknown whether the routes on disk name the children: both generations are kept."""


class LeafSplit(NamedTuple):
    """Result of a split."""

    routes: Routes  # those on disk now
    extents: dict[int, tuple[int, int]]  # `Leaf.extent` of each child


def split_leaf(
    place: TreeFolder, leaves: Leaves, routes: Routes, leaf: int, meta: Mapping[str, str]
) -> LeafSplit | None:
    """Split a leaf, which must not learn meanwhile; None if it cannot be divided.

    The children are complete and running before the routes name them. If anything fails before
    the routes are written, they are dropped, since the leaf still has all examples. Afterwards the
    children are valid, and the caller retires the leaf.
    """
    place.check_owner()
    new = routes.next_leaf, routes.next_leaf + 1
    for child in new:
        place.make_way(child)  # so that what has its name after this is ours
    try:
        centres = leaves.call(leaf, "divide", (place.draft(new[0]), place.draft(new[1])))
        if centres is None:
            return None
        for child in new:
            place.adopt(child)
        leaves.start(new, create=False, within=ROOM)
        extents = {child: leaves.call(child, "extent") for child in new}
        grown, _ = routes.split(leaf, centres)
        place.save(grown, meta)
    except BaseException:
        _undo(place, leaves, routes, new)
        raise
    return LeafSplit(grown, extents)


def _undo(place: TreeFolder, leaves: Leaves, routes: Routes, new: tuple[int, int]) -> None:
    """Delete the children, if the routes on disk certainly do not name them."""
    try:
        place.check_owner()
        found = place.load()
        if found is None or found[0].next_leaf != routes.next_leaf:
            raise StoreError("The routes on disk may or may not know of a split.")
    except StoreError as error:
        raise Undecided(
            f"The tree in {place.path} learns no more: {error} Close it and open it again: "
            "everything acknowledged is stored."
        ) from error
    for child in new:
        leaves.retire(child)
    place.drop_drafts()
