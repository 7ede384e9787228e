"""The vectors that names are to get, in CLIP ViT-B/16's space of plain names.

True ones are taken as they are. Those of ViT-B/32, and those made with prompts, are mapped: one
matrix for all sources, fitted on the names that have a true vector, and an offset for each source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Vectors = dict[str, Tensor]  # name -> unit vector

PLAIN = ("imagenet998_TML25", "broden1197_clipdissect")  # ViT-B/16, plain names
ENSEMBLES = ("cocostuff171_zegclip_multi", "ade150_brsacr", "cocopanoptic133_clipself")
WHEEL = "wheel"  # ViT-B/32, the names that every user gets
FROM_ABOVE = (
    "resisc45_knots",
    "whurs19_rstransclip",
    "eurosat10_knots",
)  # prompts of aerial images
ABOVE = "a satellite photo of {}"
LEFT_OUT = ("digits10_knots",)
ENOUGH = 30  # names shared with the true ones, for a source to take part in fitting the matrix


@dataclass
class SpaceMap:
    """From one text space to another: a matrix that sources share, and where each lies."""

    matrix: Tensor  # [DIM, DIM]
    start: dict[str, Tensor]
    end: dict[str, Tensor]

    def __call__(self, source: str, vectors: Tensor) -> Tensor:
        return F.normalize((vectors - self.start[source]) @ self.matrix + self.end[source], dim=-1)

    def centre(
        self, source: str, vectors: Mapping[str, Tensor], known: Mapping[str, Tensor]
    ) -> int:
        """Place a source by the names it shares with those known, and say how many these are."""
        both = [name for name in vectors if name in known]
        if both:
            self.start[source] = torch.stack([vectors[name] for name in both]).mean(0)
            self.end[source] = torch.stack([known[name] for name in both]).mean(0)
        return len(both)


def read_sources(raw: Mapping[str, NDArray[np.generic]], device: str) -> dict[str, Vectors]:
    """Every source's names and vectors; the first of two rows of one name counts."""
    values = torch.from_numpy(raw["vectors"]).to(device).float()
    values = F.normalize(values * torch.from_numpy(raw["scales"]).to(device).unsqueeze(1), dim=-1)
    found: dict[str, Vectors] = {}
    for row, (name, source) in enumerate(zip(raw["names"], raw["sources"], strict=True)):
        found.setdefault(str(source), {}).setdefault(str(name), values[row])
    return found


def in_bytes(rows: Tensor) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Int8, and a scale a row."""
    scales = rows.float().abs().amax(1).clamp_min(1e-12) / 127
    return (rows.float() / scales.unsqueeze(1)).round().to(torch.int8).numpy(), scales.numpy()


def true_vectors(sources: Mapping[str, Vectors]) -> Vectors:
    """Those of ViT-B/16 and plain names."""
    return {name: v for source in reversed(PLAIN) for name, v in sources[source].items()}


def fit_map(
    sources: Mapping[str, Vectors], true: Vectors, fitted_on: Sequence[str], ridge: float
) -> SpaceMap:
    """One ridge regression over all pairs, each source around its own centre."""
    made = SpaceMap(torch.empty(0), {}, {})
    before, after = [], []
    for source in fitted_on:
        if made.centre(source, sources[source], true) >= ENOUGH:
            both = [name for name in sources[source] if name in true]
            before.append(torch.stack([sources[source][n] for n in both]) - made.start[source])
            after.append(torch.stack([true[n] for n in both]) - made.end[source])
    a, b = torch.cat(before).double(), torch.cat(after).double()
    eye = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    made.matrix = torch.linalg.solve(a.T @ a + ridge * eye, a.T @ b).float()
    return made


@dataclass
class Targets:
    """What training may know of."""

    true: Vectors
    mapped: Vectors  # the rest, the mean over sources
    above: Vectors  # of prompts: the same names look otherwise from above
    known: Vectors  # the wheel's, mapped: the table of known names
    map: SpaceMap


def targets(sources: Mapping[str, Vectors], away: Collection[str], ridge: float) -> Targets:
    """Targets of all names but those kept away, which no map has seen either."""
    sources = {
        source: {name: v for name, v in found.items() if name not in away}
        for source, found in sources.items()
    }
    true = true_vectors(sources)
    apart = (*PLAIN, *ENSEMBLES, *FROM_ABOVE, *LEFT_OUT)
    small = [s for s in sources if s not in apart and is_small(sources[s], true)]
    large = [s for s in sources if s not in apart and s not in small and s != WHEEL]
    made = fit_map(sources, true, [WHEEL, *large], ridge)
    known = apply(made, WHEEL, sources[WHEEL])
    ensembles = {name: v for s in reversed(ENSEMBLES) for name, v in sources[s].items()}
    of_prompts = fit_map({"prompts": ensembles}, true, ["prompts"], 6 * ridge)
    estimates = [apply(made, source, sources[source]) for source in large]
    estimates += [known, apply(of_prompts, "prompts", ensembles)]
    mapped = means(estimates, true)
    for source in small:
        made.centre(source, sources[source], true | mapped)
    mapped = means([*estimates, *(apply(made, s, sources[s]) for s in small)], true)
    # With the offset of photographs, so that they stay apart from the same places from the ground.
    seen = {name: v for s in FROM_ABOVE for name, v in apply(made, WHEEL, sources[s]).items()}
    above = {ABOVE.format(name): vector for name, vector in seen.items()}
    return Targets(true, mapped, above, known, made)


def is_small(found: Vectors, true: Vectors) -> bool:
    """Whether a source shares too few names with the true ones to be mapped by them alone."""
    return sum(name in true for name in found) < ENOUGH


def apply(made: SpaceMap, source: str, found: Vectors) -> Vectors:
    """The vectors of a source, mapped."""
    if not found:
        return {}
    return dict(zip(found, made(source, torch.stack(list(found.values()))), strict=True))


def means(estimates: Sequence[Vectors], but: Collection[str]) -> Vectors:
    """Of each name over all that estimate it."""
    every: dict[str, list[Tensor]] = {}
    for found in estimates:
        for name, vector in found.items():
            if name not in but:
                every.setdefault(name, []).append(vector)
    return {n: F.normalize(torch.stack(v).mean(0), dim=-1) for n, v in every.items()}
