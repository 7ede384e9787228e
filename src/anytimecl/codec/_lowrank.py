"""The attention-weighted PCA of `attention_pca`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.backbone.spec import TailSpec

# From a search on real tokens; docs/codecs.md has the command and the figures.
_FLOOR = 0.1  # of the mean weight: tuning may move attention to other patches
_SCORES = 30.0  # cost of squared errors of attention scores, relative to those of patches
_MIXES = 16.0  # cost of errors of each head's weighted sum, relative to those of patches
_EXTRA, _ROUNDS = 8, 4  # of the subspace iteration: extra vectors, and iterations


class Look(NamedTuple):
    """Patches of one image, and the frozen block's attention to them."""

    patches: Tensor  # [patch, width], after the first norm's centring and scaling
    scores: Tensor  # [head, patch]
    attention: Tensor  # [head, patch]
    weights: Tensor  # [patch], sum 1


def frozen(tail: Mapping[str, Tensor], spec: TailSpec) -> dict[str, Tensor]:
    """The parameters that `look_at` needs."""
    at = f"layers.{spec.last}."
    names = ["layer_norm1.weight", "layer_norm1.bias"]
    names += ["self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight"]
    return {name: tail[at + name].detach().to("cpu", torch.float32) for name in names}


def look_at(tail: Mapping[str, Tensor], heads: int, own: Tensor, patches: Tensor) -> Look:
    """From the result of `frozen`, the normalised class token [width] and patches."""
    gain, shift = tail["layer_norm1.weight"], tail["layer_norm1.bias"]
    query = tail["self_attn.q_proj.weight"] @ (own * gain + shift)
    query = (query + tail["self_attn.q_proj.bias"]).view(heads, 1, -1)
    keys = tail["self_attn.k_proj.weight"].view(heads, -1, len(own))
    queries = (query * query.shape[-1] ** -0.5 @ keys).squeeze(1) * gain  # [head, width]
    scores = queries @ patches.T
    attention = torch.cat([queries @ own[:, None], scores], dim=1).softmax(-1)[:, 1:]
    return weighed(patches, scores, attention)


def weighed(patches: Tensor, scores: Tensor, attention: Tensor) -> Look:
    """With each patch weighted by the mean attention of the heads."""
    weights = attention.mean(0)
    weights = weights + _FLOOR * weights.mean() + 1e-12
    return Look(patches, scores, attention, weights / weights.sum())


def directions(look: Look, most: int) -> Tensor:
    """Coefficients [patch, rank] of the best components, strongest first, of unit variance.

    A PCA with attention as the patches' weights, and a higher cost of errors along the queries,
    which change the attention. Both need only the patches' Gram matrix.
    """
    gram = look.patches @ look.patches.T + _SCORES * look.scores.T @ look.scores
    from_mean = gram @ look.weights  # dot products of each patch with the weighted mean
    gram = gram - from_mean - from_mean[:, None] + look.weights @ from_mean
    root = look.weights.sqrt()
    vectors = _top(gram * root * root[:, None], most)
    return vectors / root[:, None]


def components_of(look: Look, coefficients: Tensor) -> Tensor:
    """Components [rank, width] for coefficients from `directions`."""
    weighted = look.weights[:, None] * coefficients
    # If all patches are equal, directions are arbitrary and coefficients are not centred.
    return weighted.T @ look.patches - weighted.sum(0)[:, None] * (look.weights @ look.patches)


def fit(look: Look, coefficients: Tensor) -> Tensor:
    """Best mean and components [1 + rank, width] for quantised coefficients [patch, rank].

    Least squares over the patches and each head's weighted sum of them; compensates the rounding of
    the coefficients.
    """
    design = torch.cat([torch.ones_like(look.weights)[:, None], coefficients], dim=1)
    weighted = look.weights[:, None] * design
    mixed = _MIXES / len(look.attention) * (look.attention @ design)
    normal = weighted.T @ design + mixed.T @ (look.attention @ design)
    normal.diagonal().add_(1e-6 * normal.diagonal().mean())  # rounding may make columns equal
    wanted = weighted.T @ look.patches + mixed.T @ (look.attention @ look.patches)
    fitted: Tensor = torch.linalg.solve(normal, wanted)
    return fitted


def _top(gram: Tensor, most: int) -> Tensor:
    """The leading eigenvectors [size, most] of a symmetric matrix, strongest first.

    Subspace iteration from a fixed start, in a quarter of the time of a full decomposition.
    """
    size = len(gram)
    if size <= 2 * (most + _EXTRA):
        every: Tensor = torch.linalg.eigh(gram).eigenvectors
        return every[:, size - most :].flip(-1)
    basis = _start(size, most + _EXTRA)
    for _ in range(_ROUNDS):
        basis = torch.linalg.qr(gram @ basis).Q
    inner: Tensor = torch.linalg.eigh(basis.T @ gram @ basis).eigenvectors
    return basis @ inner[:, _EXTRA:].flip(-1)


@lru_cache(maxsize=8)
def _start(size: int, count: int) -> Tensor:
    return torch.randn(size, count, generator=torch.Generator().manual_seed(0))
