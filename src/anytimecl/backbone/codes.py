"""Label embeddings for image-only models: random codes, seeded by the text.

Zero-shot prediction needs a text encoder; learning does not. The experts learn a label from its
examples alone, and the tuned block learns to map its images to the label's code.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SCALE = 35.0  # logit scale, the same as that of the loss


class CodeText:
    """A `TextEncoder` that gives random signs, seeded by a digest of the text.

    >>> vectors = CodeText(512)(["cat", "dog", "cat"])
    >>> torch.equal(vectors[0], vectors[2]), abs(float(vectors[0] @ vectors[1])) < 0.2
    (True, True)
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Texts to [text, dim] of unit length; the same on every machine and version."""
        signs = torch.empty(len(texts), self.dim)
        for row, text in zip(signs, texts, strict=True):
            digest = hashlib.shake_256(text.encode()).digest(-(-self.dim // 8))
            bits = np.unpackbits(np.frombuffer(digest, np.uint8))[: self.dim]
            row.copy_(torch.from_numpy(bits.astype(np.float32)))
        return (2 * signs - 1) / math.sqrt(self.dim)
