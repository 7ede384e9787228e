"""`attention_pca` for a pooling head, whose query is a learned probe instead of the class token.

Tokens enter SigLIP's head through a frozen norm. They are stored after its centring and scaling,
weighted by the probe's attention; gain and shift are applied when they are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec._lowrank import Look, weighed
from anytimecl.codec.attention_pca import AttentionPca
from anytimecl.tail import TailInput, Tokens

_NAMES = (
    "head.probe", "head.attention.q_proj.weight", "head.attention.q_proj.bias",
    "head.attention.k_proj.weight", "post_layernorm.weight", "post_layernorm.bias",
)  # fmt: skip


def pools_alone(spec: Spec) -> bool:
    """Whether the tail is a pooling head and nothing else."""
    return spec.tail.blocks == 0 and spec.tail.pool == "map"


class PooledPca(AttentionPca):
    """A PCA of all tokens, weighted by a pooling head's attention; their order is not stored."""

    own = 0

    def _require(self, spec: Spec) -> None:
        assert pools_alone(spec), "a tail with blocks is read otherwise"

    def _frozen(self, tail: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tail[name].detach().to("cpu", torch.float32) for name in _NAMES}

    def _look(self, normalised: Tensor) -> Look:
        tail, heads = self._tail, self._spec.heads
        query = tail["head.attention.q_proj.weight"] @ tail["head.probe"][0]
        query = (query + tail["head.attention.q_proj.bias"]).view(heads, 1, -1)
        keys = tail["head.attention.k_proj.weight"].view(heads, -1, self._spec.width)
        queries = (query * query.shape[-1] ** -0.5 @ keys).squeeze(1)
        scores = queries * tail["post_layernorm.weight"] @ normalised.T
        return weighed(normalised, scores, scores.softmax(-1))

    def _cls(self, tokens: Tensor) -> Tensor:
        return tokens.new_zeros(tokens.shape[1])  # there is none

    def _seen(
        self, cls: Tensor, mean: Tensor, components: Tensor, coefficients: Tensor
    ) -> TailInput:
        gain, shift = (
            self._tail[f"post_layernorm.{part}"].to(mean.device) for part in ("weight", "bias")
        )
        # Components are differences of tokens, to which the shift does not apply.
        parts = torch.cat([(mean * gain + shift).unsqueeze(1), components * gain], 1)
        ones = coefficients.new_ones(len(mean), 1, coefficients.shape[2])
        return TailInput(cls[:, :0], Tokens(parts, torch.cat([ones, coefficients], 1).mT))
