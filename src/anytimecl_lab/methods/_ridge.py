"""Ridge regression, in the smaller of the two dimensions: examples or features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def ridge(features: Tensor, penalty: float, right: Tensor) -> Tensor:
    """`(F'F + penalty)^-1 right` for features F [example, feature] and right [feature, column].

    >>> ridge(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), 2.0, torch.tensor([[4.0], [4.0]]))
    tensor([[1.],
            [2.]])
    """
    count, width = features.shape
    if count >= width:
        return _solved(features.T @ features, penalty, right)
    inner = _solved(features @ features.T, penalty, features @ right)
    return (right - features.T @ inner) / penalty


def left_out(features: Tensor, told: Tensor, penalties: Sequence[float]) -> Iterator[Tensor]:
    """For each penalty, leave-one-out predictions [example, column].

    In closed form: the residual of the full fit, divided by 1 - leverage.
    """
    count, width = features.shape
    if count < width:
        values, basis = torch.linalg.eigh(features @ features.T)
        turned_told = basis.T @ told
        for penalty in penalties:
            rest = penalty / (values.clamp_min(0) + penalty)
            residual = basis @ (rest[:, None] * turned_told)
            yield told - residual / (basis.square() @ rest)[:, None]
    else:
        values, basis = torch.linalg.eigh(features.T @ features)
        turned = features @ basis
        turned_told = turned.T @ told
        for penalty in penalties:
            inverse = 1 / (values.clamp_min(0) + penalty)
            residual = told - turned @ (inverse[:, None] * turned_told)
            leverage = (turned.square() @ inverse).clamp_max(1 - 1e-9)
            yield told - residual / (1 - leverage)[:, None]


def _solved(gram: Tensor, penalty: float, right: Tensor) -> Tensor:
    gram.diagonal().add_(penalty)
    return torch.cholesky_solve(right, torch.linalg.cholesky(gram))
