"""Opening a tree: its model, settings and leaves, with an error for missing leaves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from anytimecl.backbone import Backbone
from anytimecl.codec import make_codec
from anytimecl.errors import ModelError, StoreError
from anytimecl.files import sync_all
from anytimecl.memory import StoreWarning
from anytimecl.scale.leaf import Leaf
from anytimecl.scale.leaves import leaf_folder
from anytimecl.scale.routes import Routes
from anytimecl.scale.tree_folder import REMAINS, TreeFolder
from anytimecl.settings import Settings


def prepared(
    place: TreeFolder, backbone: Backbone, settings: Settings | None, accept_loss: bool
) -> tuple[Backbone, Routes, Settings, set[int]]:
    """The tree's model, routes, settings, and new leaves; creates a tree if there is none."""
    found = place.load()
    if found is None:
        backbone.require_text()  # labels are embedded at prediction
        routes, settings = Routes.single(backbone.spec.dim), settings or Settings()
        if make_codec(settings.codec, backbone.spec, backbone.tail).needs_image:
            raise ModelError("A tree sends features around, and this codec keeps images.")
        anew = {0}
    else:
        routes, told = found
        backbone = backbone.known_as(told["fingerprint"])
        if told["fingerprint"] != backbone.spec.fingerprint:
            raise StoreError(
                f"The tree in {place.path} was made with another model than {backbone.spec.name}."
            )
        settings = Settings.from_json(told["settings"], settings).agreed(settings)
        anew = _missing(place, routes, accept_loss)
        for leaf in anew:
            place.make_way(leaf, REMAINS)
    for leaf in anew:  # on the disk before any routes name it
        folder = leaf_folder(place.path, leaf)
        Leaf.open(folder, model=backbone, settings=settings, durability="full").close()
        sync_all(folder)
    return backbone, routes, settings, anew


def _missing(place: TreeFolder, routes: Routes, accept_loss: bool) -> set[int]:
    """Missing leaves if that is accepted; else raises StoreError."""
    missing = place.missing(routes.leaves())
    check_loss(place, [f"{told} is missing" for told in missing.values()], accept_loss)
    return set(missing)


def check_loss(place: TreeFolder, lost: Sequence[str], accept_loss: bool) -> None:
    """Raise StoreError for a loss or, if it is accepted, warn."""
    if not lost:
        return
    if not accept_loss:
        raise StoreError(
            f"The tree in {place.path} is not whole: {'; '.join(lost)}. Restore this from a "
            "backup or bring its disk back; or open the tree with accept_loss=True "
            "(--accept-loss) to go on without these examples."
        )
    warnings.warn(f"Examples are lost: {'; '.join(lost)}.", StoreWarning, stacklevel=4)
