"""The sentence encoder for names: a BERT with a head into CLIP's text space.

Implemented here, since importing `transformers` takes longer than the rest of a prediction. The
result is the same, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class NameEncoder(NamedTuple):
    """Weights, with the names of a BERT in `transformers`, and hyperparameters."""

    weights: Mapping[str, Tensor]
    layers: int
    heads: int
    norm_eps: float

    @classmethod
    def of(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> NameEncoder:
        """From the `config.json` of a BERT."""
        return cls(
            weights,
            config["num_hidden_layers"],
            config["num_attention_heads"],
            config["layer_norm_eps"],
        )

    @torch.no_grad()
    def __call__(self, ids: Tensor, mask: Tensor, name: Tensor) -> Tensor:
        """Word pieces [text, piece] to unit vectors [text, dim].

        `mask` is 0 after the end of a text, `name` after the end of the name in it.
        """
        read = self._read(ids, mask)
        pooled = torch.cat([mean(read, mask), mean(read, name)], dim=-1)
        return F.normalize(self._linear("head", pooled), dim=-1)

    def _read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Output of the last block, [name, piece, width]."""
        words, kinds, places = (
            self.weights[f"bert.embeddings.{name}_embeddings.weight"]
            for name in ("word", "token_type", "position")
        )
        x = words[ids] + kinds[0] + places[: ids.shape[1]]
        x = self._norm("bert.embeddings", x)
        seen = None
        if not mask.all():
            seen = mask.bool()[:, None, None].expand(-1, 1, ids.shape[1], -1)
        for index in range(self.layers):
            x = self._block(f"bert.encoder.layer.{index}.", x, seen)
        return x

    def _block(self, at: str, x: Tensor, seen: Tensor | None) -> Tensor:
        query, key, value = (
            self._linear(f"{at}attention.self.{name}", x)
            .view(*x.shape[:2], self.heads, -1)
            .transpose(1, 2)
            for name in ("query", "key", "value")
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        attended = attended.transpose(1, 2).reshape(x.shape)
        attended = self._linear(f"{at}attention.output.dense", attended)
        x = self._norm(f"{at}attention.output", attended + x)
        hidden = F.gelu(self._linear(f"{at}intermediate.dense", x))
        return self._norm(f"{at}output", self._linear(f"{at}output.dense", hidden) + x)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        gain, shift = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], gain, shift, self.norm_eps)


def mean(read: Tensor, mask: Tensor) -> Tensor:
    """Mean over the marked pieces, scaled to a norm of sqrt(width): [text, width]."""
    weight = mask.unsqueeze(-1).to(read.dtype)
    found = F.normalize((read * weight).sum(1) / weight.sum(1), dim=-1)
    return found * math.sqrt(found.shape[-1])
