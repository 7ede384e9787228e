"""What a model says of labels it was never taught: a probability of each, and of none of them."""

from __future__ import annotations

import torch
from torch import Tensor


def with_none(logits: Tensor, none_logit: float | None) -> tuple[Tensor, Tensor]:
    """Probabilities of labels [image, label] and of "none of these" [image].

    `logits` [image, label] are `logit_scale` times a cosine, and `none_logit` is the model's
    `Spec.none_logit`. A model that has none chooses among the labels, whatever the image shows.

    >>> label, none = with_none(torch.tensor([[2.0]]), 5.0)
    >>> torch.allclose(label[0], torch.sigmoid(torch.tensor(2.0 - 5.0)))  # as SigLIP has it
    True
    """
    if none_logit is None:
        return logits.softmax(1), logits.new_zeros(len(logits))
    none = logits.new_full((len(logits), 1), none_logit)
    shares = torch.cat([logits, none], 1).softmax(1)
    return shares[:, :-1], shares[:, -1]
