"""The sentence encoder as it is trained: a BERT in half precision, with the head that we add.

What runs later is `anytimecl.backbone.embedded.encoder`, from the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.embedded.pieces import Pieces

DIM = 512  # of CLIP ViT-B/16's label space
DROPOUT = 0.1
HEADS = 12
NORM_EPS = 1e-12

Weights = dict[str, Tensor]


def load_weights(folder: Path) -> Weights:
    """MiniLM's, as `prepare` wrote them."""
    raw = np.load(folder / "minilm.npz")
    weights = {}
    for name in (n for n in raw.files if not n.endswith(".scale")):
        value = torch.from_numpy(raw[name]).float()
        if name + ".scale" in raw.files:
            value = value * torch.from_numpy(raw[name + ".scale"]).unsqueeze(1)
        weights[name] = value
    return weights


class NameEncoder:
    """Weights by name, and what is done with them; `dtype` is that of the blocks' products."""

    def __init__(self, weights: Mapping[str, Tensor], device: str) -> None:
        self.weights: Weights = {name: value.to(device) for name, value in weights.items()}
        width = self.weights["bert.embeddings.word_embeddings.weight"].shape[1]
        self.weights.setdefault("head.weight", torch.zeros(DIM, 2 * width, device=device))
        self.weights.setdefault("head.bias", torch.zeros(DIM, device=device))
        self.layers = 1 + max(int(n.split(".")[3]) for n in weights if n.startswith("bert.encoder"))
        self.dtype = torch.bfloat16
        self.training = False

    def tuned(self, part: str) -> list[Tensor]:
        """The weights that training changes: all but the embeddings."""
        return [
            value
            for name, value in self.weights.items()
            if name.startswith(part) and "embeddings" not in name
        ]

    def __call__(self, pieces: Pieces) -> Tensor:
        """Unit vectors [text, DIM]."""
        return self.headed(self.pooled(pieces))

    def headed(self, pooled: Tensor) -> Tensor:
        return F.normalize(F.linear(pooled, self.weights["head.weight"], self.weights["head.bias"]))

    def pooled(self, pieces: Pieces) -> Tensor:
        """The means over all pieces and over the name's, of one length [text, 2 width]."""
        read = self._read(pieces).float()
        return torch.cat([mean(read, pieces.mask), mean(read, pieces.name)], dim=-1)

    def _read(self, pieces: Pieces) -> Tensor:
        at = "bert.embeddings."
        words, kinds, places = (
            self.weights[f"{at}{name}_embeddings.weight"]
            for name in ("word", "token_type", "position")
        )
        x = words[pieces.ids] + kinds[0] + places[: pieces.ids.shape[1]]
        x = self._dropped(self._norm("bert.embeddings", x.to(self.dtype)))
        seen = (pieces.mask > 0)[:, None, None]
        for index in range(self.layers):
            x = self._block(f"bert.encoder.layer.{index}.", x, seen)
        return x

    def _block(self, at: str, x: Tensor, seen: Tensor) -> Tensor:
        query, key, value = (
            self._linear(f"{at}attention.self.{name}", x)
            .view(*x.shape[:2], HEADS, -1)
            .transpose(1, 2)
            for name in ("query", "key", "value")
        )
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        found = self._linear(f"{at}attention.output.dense", found.transpose(1, 2).reshape(x.shape))
        x = self._norm(f"{at}attention.output", self._dropped(found) + x)
        hidden = F.gelu(self._linear(f"{at}intermediate.dense", x))
        return self._norm(
            f"{at}output", self._dropped(self._linear(f"{at}output.dense", hidden)) + x
        )

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, DROPOUT) if self.training else x

    def _linear(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.linear(x, weight.to(self.dtype), bias.to(self.dtype))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        gain, shift = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], gain.to(self.dtype), shift.to(self.dtype), NORM_EPS)


def mean(read: Tensor, mask: Tensor) -> Tensor:
    """Over the marked pieces, its length made the same for every text [text, width]."""
    weight = mask.unsqueeze(-1).to(read.dtype)
    found = F.normalize((read * weight).sum(1) / weight.sum(1), dim=-1)
    return found * math.sqrt(found.shape[-1])
