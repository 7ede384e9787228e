"""Which names validation keeps away from training, so that it says something of other names.

Names that mean the same, by WordNet, are always kept away together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Split:
    """What is held out."""

    classes: list[int]  # of ImageNet, with all their synonyms
    groups: dict[str, list[str]]  # source -> names of it, whole families
    away: set[str]  # every name that training must not see


def family(name: str, contexts: Mapping[str, str]) -> str:
    """What a name is a kind of; its last word where WordNet does not know it."""
    said = contexts.get(name, "").partition(":")[0].split(", ")
    return said[-2] if len(said) > 1 else name.split()[-1]


def meaning(name: str, contexts: Mapping[str, str]) -> str | None:
    """The gloss of a name."""
    return contexts.get(name, "").partition(": ")[2] or None


def hold_out(
    synonyms: Sequence[Sequence[str]],
    sources: Mapping[str, Collection[str]],
    contexts: Mapping[str, str],
    headless: Collection[str],
    *,
    classes: int,
    whole_families: bool,
    share: float = 0.08,
    largest: int = 60,
    seed: int = 0,
) -> Split:
    """Some ImageNet classes, at random or by family, and families of all other names.

    `headless` names have the meaning of their head alone.
    """
    if not classes:
        return Split([], {}, set())
    random = np.random.default_rng(seed)
    order = random.permutation(len(synonyms)).tolist()
    if whole_families:
        of = [family(next((s for s in c if s in contexts), c[0]), contexts) for c in synonyms]
        turn = {key: place for place, key in enumerate(dict.fromkeys(of[i] for i in order))}
        order.sort(key=lambda i: turn[of[i]])
    chosen = order[:classes]
    imagenet = {s for c in synonyms for s in c}
    families: dict[str, set[str]] = {}
    for found in sources.values():
        for name in found:
            families.setdefault(family(name, contexts), set()).add(name)
    others = [k for k, v in families.items() if len(v) <= largest and not v & imagenet]
    wanted = share * sum(len(v) for v in families.values())
    away: set[str] = set()
    for key in random.permutation(sorted(others)).tolist():
        if len(away) >= wanted:
            break
        away |= families[key]
    groups = {source: sorted(set(found) & away) for source, found in sources.items()}
    away |= {s for i in chosen for s in synonyms[i]}
    taught = {s for i in order[classes:] for s in synonyms[i]}
    said = {meaning(n, contexts) for n in away if n not in headless} - {None}
    same = {n for found in sources.values() for n in found if meaning(n, contexts) in said}
    away |= same - taught
    return Split(chosen, {s: n for s, n in groups.items() if len(n) >= 10}, away)
