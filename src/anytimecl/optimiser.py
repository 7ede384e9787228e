"""AdamW (Loshchilov and Hutter, ICLR 2019), over named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Factored(Protocol):
    """A gradient in factored form."""

    def whole(self) -> Tensor:
        """The full gradient."""
        ...


Gradient = Tensor | Factored


def adamw(
    weight: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    lr: Tensor,  # []
    count: Tensor,  # [], the number of this step
    weight_decay: float,
) -> None:
    """One step, in place; learning rate and step number are tensors on the device."""
    first.lerp_(gradient, 1 - BETAS[0])
    second.lerp_(gradient.square(), 1 - BETAS[1])
    weight.mul_(1 - lr * weight_decay)
    size = (second / (1 - BETAS[1] ** count)).sqrt_().add_(EPSILON)
    weight.sub_(lr / (1 - BETAS[0] ** count) * first / size)


class AdamW:
    """AdamW over named tensors, updated in place.

    >>> weights = {"w": torch.ones(2)}
    >>> AdamW(weights, weight_decay=0.0).step(weights, {"w": torch.ones(2)}, lr=0.1)
    >>> weights["w"]
    tensor([0.9000, 0.9000])
    """

    def __init__(self, parameters: Mapping[str, Tensor], weight_decay: float) -> None:
        self.weight_decay = weight_decay
        self.steps = 0
        self.moments = {n: (_zeros_like(p), _zeros_like(p)) for n, p in parameters.items()}

    def step(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Gradient], lr: float
    ) -> None:
        """Take a step for the parameters that have a gradient."""
        self.steps += 1
        rate, count = next(iter(parameters.values())).new_tensor([lr, self.steps])
        self.update(parameters, gradients, rate, count)

    def update(
        self,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Gradient],
        lr: Tensor,
        count: Tensor,
    ) -> None:
        """The same with learning rate `lr` [] and step number `count` [] on the device."""
        for name, gradient in gradients.items():
            whole = gradient if isinstance(gradient, Tensor) else gradient.whole()
            adamw(parameters[name], whole, *self.moments[name], lr, count, self.weight_decay)


def _zeros_like(p: Tensor) -> Tensor:
    """On a CPU with `np.zeros`, whose pages take no RAM until written: prediction never writes."""
    if p.device.type != "cpu" or p.dtype != torch.float32:
        return torch.zeros_like(p)
    return torch.from_numpy(np.zeros(p.shape, np.float32))
