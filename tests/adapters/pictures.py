"""Pictures that even a random model can learn to tell apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anytimecl import LearnerConfig, Settings

QUICK = Settings(learner=LearnerConfig(batch=8, lr=1e-3))  # a random model takes larger steps


def images(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], list[str]]:
    """Pictures [image, height, width, channel] of two sorts, told apart by their colour."""
    noise = np.random.default_rng(seed).integers(0, 100, (count, 24, 24, 3), dtype=np.uint8)
    labels = ["cat" if i % 2 else "dog" for i in range(count)]
    for picture, label in zip(noise, labels, strict=True):
        picture[:, :, 0 if label == "cat" else 2] += 150
    return noise, labels
