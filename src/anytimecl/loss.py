"""The training loss (Eq. 3): the true label among the candidates, and "other" without it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def anytime_loss(
    logits: Tensor,  # [batch, label]; -inf where a label is not a candidate of that example
    other: Tensor,  # [], the learnable logit of "other"
    target: Tensor,  # [batch], index of the true label
    beta: float = 0.1,
    weight: Tensor | None = None,  # [batch], sums to 1; None: equal
) -> Tensor:
    """`CE(x, y, Y u other) + beta * CE(x, other, (Y u other) \\ y)`, averaged over the batch.

    >>> logits, target = torch.tensor([[2.0, 1.0]]), torch.tensor([0])
    >>> round(float(anytime_loss(logits, torch.tensor(0.0), target)), 4)
    0.5389
    """
    with_other = torch.cat([logits, other.expand(len(logits), 1)], dim=1)
    without_y = with_other.scatter(1, target.unsqueeze(1), -torch.inf)
    absent = without_y.logsumexp(1) - other
    if weight is None:
        return F.cross_entropy(with_other, target) + beta * absent.mean()
    right = F.cross_entropy(with_other, target, reduction="none")
    return weight @ (right + beta * absent)
