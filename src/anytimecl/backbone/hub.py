"""Models in the Hugging Face layout, from the hub, its cache, or a folder.

Weights are read from safetensors files and renamed to canonical names by the tables in
`families/*.json`.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from anytimecl.backbone import Backbone, ModelCard, hub_name, open_clip, repository, timm
from anytimecl.backbone.hub_config import family_of, preprocess_of, vision_of
from anytimecl.backbone.hub_digest import digest_of, former_digest
from anytimecl.backbone.hub_text import text_of
from anytimecl.backbone.hub_weights import places_of, weight_files, weights_of
from anytimecl.backbone.spec import Spec
from anytimecl.backbone.text import LabelCache
from anytimecl.backbone.trunk import TorchTrunk
from anytimecl.errors import AnytimeError, ModelError

# Errors of files that are JSON or safetensors, with anything in them.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)


def load(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    """Load the model of a card; its last `tail_blocks` blocks become the tail."""
    try:
        return _load(card, tail_blocks, device)
    except AnytimeError:
        raise
    except _MALFORMED as error:
        raise ModelError(
            f"{card.source} cannot be loaded: its files do not fit together ({error!r}). Copy or "
            "fetch it again."
        ) from error


def _load(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    name = card.source
    found_in = folder = _folder(name)
    if open_clip.is_one(folder):
        folder = open_clip.converted(name, folder)
    elif timm.is_one(folder):
        folder = timm.converted(name, folder)
    family, config = family_of(name, folder)
    prep = preprocess_of(name, folder, family, config)
    least = 0 if family["pool"] == "map" else 1  # a pooling head can be a tail alone
    vision = vision_of(name, family, config, least if tail_blocks is None else tail_blocks, prep)
    files = weight_files(name, folder)
    found = places_of(name, family, vision, files)
    trunk, tail, logits = weights_of(name, family, vision, prep, found)
    patch = trunk["patch_embedding.weight"].shape[-1]
    grid = (prep.height // patch) * (prep.width // patch)
    dim = len(tail.get("visual_projection.weight", range(vision.width)))
    text, scale = text_of(name, folder, family, config, dim, device)
    if "logit_scale" in logits:
        scale = math.exp(logits["logit_scale"])
    spec = Spec(
        name=name,
        family=family["family"],
        preprocess=prep,
        tail=vision,
        tokens=grid + (len(trunk["prefix"][0]) if "prefix" in trunk else 0),
        dim=dim,
        logit_scale=scale,
        # SigLIP's. A softmax over candidates cancels it; it gives the probability of "none of
        # these".
        logit_bias=logits.get("logit_bias", 0.0),
        weights=digest_of(files, text, folder),
        revision=repository.commit_of(found_in),
    )
    return Backbone(
        spec=spec,
        trunk=TorchTrunk({name: value.to(device) for name, value in trunk.items()}, vision),
        tail={name: value.to(device) for name, value in tail.items()},
        text=text,
        templates=card.templates or tuple(family["templates"]),
        label_cache=LabelCache.of_user(),
        former_weights=partial(former_digest, folder, files),
    )


def _folder(name: str) -> Path:
    """The model's folder: a local one, else its folder in the hub's cache."""
    if Path(name).is_dir():
        return Path(name)
    asked = hub_name.parse(name)
    if asked is None:
        raise ModelError(f"There is no folder {name!r}, and no model of that name on the hub.")
    return repository.fetch(asked)
