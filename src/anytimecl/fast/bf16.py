"""Mixed precision: bfloat16 copies of the weights for the products of a step.

A step multiplies a small batch with every weight, forward and backward; a processor with bfloat16
instructions does so faster (`benchmarks.step` times both). An update is smaller than bfloat16 can
resolve, so master weights and moments stay in float32, and copies are refreshed after each update.
Predictions use the float32 weights; a new example is scored by the step that learns it, and so with
the copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from anytimecl.settings import Precision

_WIDE = 256  # features: below, the copies take longer than they save


def copies_of(params: Mapping[str, Tensor], precision: Precision) -> dict[str, Tensor]:
    """Copies of every matrix if `precision` asks for it; with "auto", where that is faster."""
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
    """Whether this processor has bfloat16 instructions."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))
