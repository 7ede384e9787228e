"""What is stored for the benchmark of predictions and consolidation."""

from __future__ import annotations

import torch
from benchmarks.predict import stored_images


def test_stored_images_are_all_different() -> None:
    """Equal ones would be stored once, and an epoch be over fewer than it says."""
    images = stored_images(torch.randn(3, 4, 5), 50)
    assert images.shape == (50, 4, 5)
    assert len(torch.unique(images, dim=0)) == 50
