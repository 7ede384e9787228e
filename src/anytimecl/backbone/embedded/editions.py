"""Editions of the embedded model, and which earlier ones a memory may come from.

An edition has a text side of its own, fitted with its own logit scale. Where the image side stayed
what it was, so did all that a memory keeps of images; its label vectors are in its checkpoint. Such
a memory opens with today's edition, under the name that it knows, and asks today's text side for
labels that it has not met.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import NamedTuple

from anytimecl.backbone.spec import Spec


class Edition(NamedTuple):
    """An earlier one, as memories know it."""

    version: str
    weights: str  # what `assemble.identity` was
    logit_scale: float


# Whoever makes an edition with another text side adds the last one here.
SAME_IMAGES: tuple[Edition, ...] = (
    Edition("2", "c94c54aec1b3e6b6191ebbf883523854effff2b123529776dbb99823730031d1", 150.0),
)


def former_specs(spec: Spec) -> tuple[Spec, ...]:
    """What today's model, described by `spec`, was in earlier editions."""
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
    """The digest of one kind of trunk: their features differ, so they are two models."""
    return hashlib.sha256(f"{identity} float".encode()).hexdigest() if in_float else identity
