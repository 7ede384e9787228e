"""Weights in bfloat16 for the products of a step, beside those in float32 that learn.

A step multiplies a thin batch with every weight, there and back, and a processor that knows
bfloat16 does so faster (`benchmarks.step` times both). Its eight bits are too few to learn in: a
step changes a weight by less. So weights and moments stay as they are, and each copy is made anew
when its weight has changed. Predictions come from the weights themselves; a newcomer is scored by
the step that learns it, and so by the copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from anytimecl.settings import Precision

_WIDE = 256  # features: below, the copies take longer than they save


def copies_of(params: Mapping[str, Tensor], precision: Precision) -> dict[str, Tensor]:
    """Of every matrix, if that precision asks for it; "auto" where it pays."""
    matrices = {name: p for name, p in params.items() if p.dim() == 2 and len(p) > 1}
    wanted = precision == "bfloat16"
    if precision == "auto":
        wanted = all(
            p.device.type == "cpu" and p.dtype == torch.float32 and min(p.shape) >= _WIDE
            for p in matrices.values()
        )
        wanted = wanted and _fast_here()
    return {name: p.to(torch.bfloat16) for name, p in matrices.items()} if wanted else {}


@cache
def _fast_here() -> bool:
    """Whether this processor multiplies bfloat16 itself."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))
