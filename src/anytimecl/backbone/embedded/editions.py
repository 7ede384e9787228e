"""Editions of the embedded model, and the earlier ones whose memories can be opened.

Each edition has its own text encoder and logit scale. If the image tower is the same, stored image
features are still valid, and label embeddings are in the checkpoint. Such a memory is opened with
the current edition, with its old fingerprint; new labels are embedded by the current text encoder.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import NamedTuple

from anytimecl.backbone.spec import Spec


class Edition(NamedTuple):
    """An earlier edition, as in the fingerprint of its memories."""

    version: str
    weights: str  # its `assemble.identity`
    logit_scale: float


# Add the current edition here when its text encoder is replaced.
SAME_IMAGES: tuple[Edition, ...] = (
    Edition("2", "c94c54aec1b3e6b6191ebbf883523854effff2b123529776dbb99823730031d1", 150.0),
)


def former_specs(spec: Spec) -> tuple[Spec, ...]:
    """The specs of earlier editions, from that of the current model."""
    return tuple(
        dataclasses.replace(
            spec,
            weights=weights_of(edition.weights, spec.trunk == "float"),
            logit_scale=edition.logit_scale,
            revision=edition.version,
        )
        for edition in SAME_IMAGES
    )


def weights_of(identity: str, in_float: bool) -> str:
    """The digest for one kind of trunk: int8 and float features differ."""
    return hashlib.sha256(f"{identity} float".encode()).hexdigest() if in_float else identity
