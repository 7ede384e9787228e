"""Two leaves for one, whole or not at all, wherever it is cut short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.scale.leaves import Leaves
from anytimecl.scale.routes import Routes
from anytimecl.scale.tree_folder import TreeFolder

ROOM = 30.0  # seconds that children have to start, while lessons for them wait


class Undecided(StoreError):
    """Nobody knows whether the routes on disk name the children: both generations must stay."""


class LeafSplit(NamedTuple):
    """What has come of a leaf."""

    routes: Routes  # as they are on disk now
    extents: dict[int, tuple[int, int]]  # of each child, as `Leaf.extent` gives them


def split_leaf(
    place: TreeFolder, leaves: Leaves, routes: Routes, leaf: int, meta: Mapping[str, str]
) -> LeafSplit | None:
    """Split a leaf that learns nothing meanwhile; None if there are no two to be found.

    The children are there in full, and answer, before the routes name them. Until the routes are
    written the leaf has all that is in them, so whatever fails before, they are dropped. After that
    it is the children that count, and whoever called retires the leaf.
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
    """Drop the children, if it is certain that the routes on disk do not name them."""
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
