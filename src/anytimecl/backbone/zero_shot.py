"""Zero-shot probabilities, with "none of these"."""

from __future__ import annotations

import torch
from torch import Tensor


def with_none(logits: Tensor, none_logit: float | None) -> tuple[Tensor, Tensor]:
    """Probabilities of labels [image, label] and of "none of these" [image].

    `logits` [image, label] are `logit_scale` times a cosine, and `none_logit` is the model's
    `Spec.none_logit`; without it, the probability of "none of these" is 0.

    >>> label, none = with_none(torch.tensor([[2.0]]), 5.0)
    >>> torch.allclose(label[0], torch.sigmoid(torch.tensor(2.0 - 5.0)))  # as SigLIP has it
    True
    """
    if none_logit is None:
        return logits.softmax(1), logits.new_zeros(len(logits))
    none = logits.new_full((len(logits), 1), none_logit)
    shares = torch.cat([logits, none], 1).softmax(1)
    return shares[:, :-1], shares[:, -1]
