"""Random features, reproducible on every device."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Features = Callable[[Tensor], Tensor]  # [image, dim] -> [image, feature]


def relu_features(dim: int, count: int, seed: int, device: torch.device) -> Features:
    """ReLU of a random projection, with norms near 1."""
    generator = torch.Generator().manual_seed(seed)
    projection = math.sqrt(2 / count) * torch.randn(dim, count, generator=generator).to(device)
    return lambda vectors: (vectors @ projection.to(vectors)).relu()


def fourier_features(
    dim: int, count: int, width: float, seed: int, device: torch.device
) -> Features:
    """Random Fourier features (Rahimi and Recht) of the kernel `exp(-|x - y|^2 / (2 width^2))`."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.randn(dim, count, generator=generator).to(device) / width
    phases = 2 * math.pi * torch.rand(count, generator=generator).to(device)

    def features(vectors: Tensor) -> Tensor:
        angles = vectors @ frequencies.to(vectors) + phases.to(vectors)
        return angles.cos() * math.sqrt(2 / count)

    return features
