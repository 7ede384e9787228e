"""On a GPU: AdamW with a low-rank gradient in one kernel, tile by tile.

The gradient never reaches memory. The weight and its two moments are read and written once, the
minimum for an Adam step.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from anytimecl.fast.low_rank import LowRank

# Tile shape. Not tuned by anything in this repository; benchmarks.gpu times the step.
_ROWS, _COLUMNS, _WARPS = 16, 64, 2


def fused_step(
    gradient: LowRank,
    parameter: Tensor,  # [row, column]
    first: Tensor,
    second: Tensor,
    light: Tensor | None,  # a copy of the parameter
    lr: Tensor,  # []
    count: Tensor,  # [], the number of this step
    constants: tuple[float, float, float, float],  # both betas, epsilon, weight decay
) -> None:
    """One step of AdamW, in place."""
    left, right = gradient.left.contiguous(), gradient.right.contiguous()
    batch, heads, rows = left.shape
    columns = right.shape[2]
    grid = (-(-rows // _ROWS), -(-columns // _COLUMNS), heads)
    _kernel()[grid](
        *(parameter, first, second, parameter if light is None else light, left, right, lr, count),
        *(batch, heads, rows, columns),
        *constants,
        BATCH=max(16, 1 << (batch - 1).bit_length()),
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        LIGHT=light is not None,
        PRECISION="tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        num_warps=_WARPS,
    )


@cache
def _kernel() -> Any:
    import triton  # comes with torch where it is built for a GPU
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def step(  # type: ignore[no-untyped-def]
        weight, first, second, light, left, right, rate, count,
        batch, heads, rows, columns,
        beta1, beta2, epsilon, decay,
        BATCH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
        LIGHT: tl.constexpr, PRECISION: tl.constexpr,  # noqa: N803
    ):  # fmt: skip
        head = tl.program_id(2)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        example = tl.arange(0, BATCH)
        at = example[None, :] * heads * rows + head * rows + row[:, None]
        a = tl.load(left + at, mask=(example[None, :] < batch) & (row[:, None] < rows), other=0.0)
        at = example[:, None] * heads * columns + head * columns + column[None, :]
        inside = (example[:, None] < batch) & (column[None, :] < columns)
        b = tl.load(right + at, mask=inside, other=0.0)
        g = tl.dot(a, b.to(a.dtype), input_precision=PRECISION)

        at = (head * rows + row[:, None]) * columns + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        w = tl.load(weight + at, mask=inside)
        m = tl.load(first + at, mask=inside)
        v = tl.load(second + at, mask=inside)
        lr, n = tl.load(rate), tl.load(count)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        corrected1 = 1 - tl.exp2(n * tl.log2(beta1))
        corrected2 = 1 - tl.exp2(n * tl.log2(beta2))
        w = w * (1 - lr * decay) - lr / corrected1 * m / (tl.sqrt(v / corrected2) + epsilon)
        tl.store(weight + at, w, mask=inside)
        tl.store(first + at, m, mask=inside)
        tl.store(second + at, v, mask=inside)
        if LIGHT:
            tl.store(light + at, w.to(light.dtype.element_ty), mask=inside)

    return step
