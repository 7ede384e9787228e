"""Opening a memory: its store, model and settings, and checks that they fit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from anytimecl.backbone import Backbone, Spec, load_stored
from anytimecl.backbone import load as load_backbone
from anytimecl.backbone.hub_name import pinned
from anytimecl.backbone.prior import Prior
from anytimecl.backbone.spec import differences
from anytimecl.backbone.text import check_templates
from anytimecl.blend import BLENDS
from anytimecl.codec import ImageBytes, default_codec, make_codec
from anytimecl.errors import ModelError, PartError, StoreError
from anytimecl.files import replacing, shown
from anytimecl.memory import STORES, Store
from anytimecl.memory.opening import stored_meta
from anytimecl.registry import Choice, Named
from anytimecl.sampling import SAMPLERS
from anytimecl.settings import Settings

STORE = "store.json"  # names the store, in the folder of a memory with a custom one
PRIOR = "prior.safetensors"  # in the folder of a memory


class StoreOptionError(PartError, TypeError):
    """A store does not take an option, or needs it: an argument that is not known, or missing."""


def opened(
    folder: Path | None,
    store: Named,
    model: Choice[Backbone] | Path | None,
    asked: Settings | None,
    device: str,
    read_only: bool,
) -> tuple[Backbone, Store, Settings]:
    """Create or reopen a memory; returns its model, store and settings."""
    if not isinstance(asked, Settings | None):
        raise TypeError(f"settings are anytimecl.settings.Settings(...), not {asked!r}.")
    stored = stored_in(store, folder)
    backbone = model_of(stored, model, device).with_labels()
    chosen = asked or Settings(codec=default_codec(backbone.spec))
    meta = {
        "settings": chosen.to_json(),
        "spec": json.dumps(backbone.spec.to_dict()),
        "fingerprint": backbone.spec.fingerprint,
    }
    if backbone.options:
        meta["model"] = json.dumps(dict(backbone.options))
    if stored is None:
        check_makeable(chosen, backbone)
    memory = open_store(store, folder, None if read_only else meta, read_only=read_only)
    try:
        check_same_model(memory, backbone, shown(folder) if folder else "RAM")
        agreed = Settings.from_json(memory.meta["settings"], asked).agreed(asked)
        if folder is not None:
            backbone = with_own_prior(backbone, folder, read_only=read_only)
    except BaseException:
        memory.close()
        raise
    return backbone, memory, agreed


def check_makeable(chosen: Settings, backbone: Backbone) -> None:
    """An error before a memory is made: what it is made with, it keeps."""
    if not isinstance(chosen.seed, int):  # which older memories may have otherwise
        raise ValueError(f"seed is a whole number, not {chosen.seed!r}.")
    chosen.learner.check()
    make_codec(chosen.codec, backbone.spec, backbone.tail)
    SAMPLERS.make(chosen.sampler)
    BLENDS.make(chosen.blend)
    chosen.other_experts(backbone.spec.dim, backbone.prior)
    if chosen.templates is not None:
        check_templates(chosen.templates)


def store_of(store: Choice[Store] | None, folder: Path | None, options: Mapping[str, Any]) -> Named:
    """The store that was asked for, else the one that the folder was made with."""
    if store is None:
        file = None if folder is None else folder / STORE
        default = "ram" if folder is None else "sqlite"
        try:
            store = json.loads(file.read_text("utf-8")) if file and file.exists() else default
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{file} is damaged, which says what store the memory is in: restore it from a "
                f"backup, or name the store. ({error})"
            ) from error
    read = STORES.read(store)
    named = Named(read.name, {**read.options, **options}, read.given)
    try:
        return STORES.named(named)
    except PartError as error:
        if named.name not in STORES:
            raise
        raise StoreOptionError(str(error)) from error


def stored_in(named: Named, folder: Path | None) -> dict[str, str] | None:
    """The metadata of an existing memory; None if there is none."""
    if isinstance(named.given, Store):
        return dict(named.given.meta) or None
    if folder is None or named.name in ("ram", "sqlite"):
        return None if folder is None else stored_meta(folder)
    try:
        with STORES.make(named, folder, None, True) as found:
            return dict(found.meta)
    except StoreError:
        return None


def open_store(
    named: Named, folder: Path | None, meta: Mapping[str, str] | None, *, read_only: bool
) -> Store:
    """The memory, created with `meta` if there is none; a custom store is noted in the folder."""
    if named.name == "ram" and named.given is None and folder is not None:
        raise StoreError("The store 'ram' keeps nothing on the disk: open it without a folder.")
    if named.name == "ram" and named.given is None and read_only:
        raise StoreError("There is nothing to read without a folder: name that of a memory.")
    memory = STORES.make(named, folder, meta, read_only)
    if "settings" not in memory.meta:
        raise StoreError(
            "This store was not made by a classifier: it does not say with which settings. Give "
            "the class or function that opens it, or its registered name, so that it is made so."
        )
    if folder is not None and named.name != "sqlite" and not read_only:
        with replacing(folder / STORE) as draft:
            draft.write_text(json.dumps(named.plain()), "utf-8")
    return memory


def model_of(
    stored: Mapping[str, str] | None, model: Choice[Backbone] | Path | None, device: str
) -> Backbone:
    """The model that was asked for, else the memory's own."""
    if stored is None:
        return load_backbone("embedded" if model is None else model, device=device)
    return load_stored(stored, model, device=device)


def check_same_model(memory: Store, backbone: Backbone, folder: str) -> None:
    if memory.meta["fingerprint"] != backbone.spec.fingerprint:
        was = Spec.from_dict(json.loads(memory.meta["spec"]))
        made_with, told = was.name, ", ".join(differences(was, backbone.spec))
        codec = Settings.from_json(memory.meta["settings"]).name_of("codec")
        own = pinned(made_with, was.revision)
        if made_with == backbone.spec.name:
            raise StoreError(
                f"The memory in {folder} was made with another version of the model {made_with!r}: "
                f"{told}. "
                + (f'Open it with model="{own}". ' if own != made_with else "")
                + way_out(codec, folder)
            )
        raise StoreError(
            f"The memory in {folder} was made with the model {made_with!r}, whose features differ "
            f"from those of {backbone.spec.name!r} ({told}). Open it with that model "
            f'(model="{own}"; "embedded" is on a CPU, "embedded-float" anywhere), '
            "or start another. " + way_out(codec, folder)
        )


def with_own_prior(backbone: Backbone, folder: Path, *, read_only: bool) -> Backbone:
    """The backbone with the memory's own prior: another one would give other predictions."""
    file = folder / PRIOR
    if not file.exists():
        if read_only or backbone.prior is None:
            return backbone
        try:
            backbone.prior.save(file)
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"{file} cannot be written: {error}. Make room and try again."
            ) from error
    prior = Prior.load(file)
    if len(prior.mean) != backbone.spec.dim:
        raise ModelError(
            f"{file} is the prior of another model, of {len(prior.mean)} dimensions instead of "
            f"{backbone.spec.dim}: restore it from a backup."
        )
    return dataclasses.replace(backbone, prior=prior)


def way_out(codec: str, folder: str) -> str:
    """Advice for a memory that was made with another model."""
    if codec == ImageBytes.name:
        return (
            f"It keeps the images: `anytimecl memory reencode {folder} --to NEW --model NAME` "
            "makes a memory for another model of them."
        )
    return (
        "Its features cannot be turned into those of another model; a memory made with "
        "`--codec image` could be."
    )
