"""Low-rank gradients as two factors, and an AdamW that multiplies them during the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.fast.layers import heavy
from anytimecl.fast.triton_adamw import fused_step
from anytimecl.optimiser import BETAS, EPSILON, AdamW, Gradient, adamw

# torch's fused kernel over many weights at once; without it, `adamw` for each.
_FUSED: Callable[..., None] | None = getattr(torch, "_fused_adamw_", None)
_AT_ONCE = 3 << 17  # numbers of a weight: with gradient and moments, six megabytes


class LowRank(NamedTuple):
    """The gradient of a weight: for each head its rows are `left^T @ right`.

    >>> LowRank(torch.ones(1, 1, 2), torch.full((1, 1, 3), 2.0)).whole().tolist()
    [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """

    left: Tensor  # [batch, head, row]
    right: Tensor  # [batch, head, column]; one head for an ordinary weight

    def whole(self, into: Tensor | None = None) -> Tensor:
        """The full gradient [head * row, column], written `into` a tensor if given."""
        left, right = self.left.permute(1, 2, 0), self.right.transpose(0, 1)
        if into is None:
            return torch.bmm(heavy(left), heavy(right)).flatten(0, 1)
        if len(left) == 1 and into.dtype == torch.bfloat16:
            return torch.mm(left[0], right[0], out=into)
        threads = torch.get_num_threads()
        if len(left) == 1 and left.shape[1] % threads == 0:
            # Each thread makes the rows that it will use: cores may be far from one another.
            left, right = left.view(threads, -1, left.shape[2]), right.expand(threads, -1, -1)
        torch.bmm(left, right, out=into.view(len(left), -1, into.shape[1]))
        return into


class FusedAdamW(AdamW):
    """AdamW by torch's fused kernel; takes low-rank gradients, and refreshes bfloat16 `copies`."""

    def __init__(
        self, parameters: Mapping[str, Tensor], weight_decay: float, copies: Mapping[str, Tensor]
    ) -> None:
        super().__init__(parameters, weight_decay)
        self._copies = copies
        # Fresh memory for large gradients would cost a CPU more than working them out.
        self._buffers: dict[tuple[int, torch.dtype], Tensor] = {}

    def update(
        self,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Gradient],
        lr: Tensor,
        count: Tensor,
    ) -> None:
        """The same with learning rate `lr` [] and step number `count` [] on the device."""
        plain = []
        for name, gradient in gradients.items():
            state = (parameters[name], *self.moments[name])
            if not isinstance(gradient, LowRank):
                plain.append(
                    (gradient if isinstance(gradient, Tensor) else gradient.whole(), *state)
                )
            elif parameters[name].is_cuda:
                constants = (*BETAS, EPSILON, self.weight_decay)
                fused_step(gradient, *state, self._copies.get(name), lr, count, constants)
            else:
                self._on_cpu(gradient, *state, self._copies.get(name), lr, count)
        self._all(plain, lr, count)
        for name in gradients.keys() & self._copies.keys():
            if not isinstance(gradients[name], LowRank):
                self._copies[name].copy_(parameters[name])

    def _on_cpu(
        self,
        gradient: LowRank,
        parameter: Tensor,
        first: Tensor,
        second: Tensor,
        light: Tensor | None,
        lr: Tensor,
        count: Tensor,
    ) -> None:
        """Update one weight while its gradient is still in the CPU cache."""
        whole = gradient.whole(self._buffer(parameter.shape, gradient.left.dtype))
        if light is None:
            self._all([(whole, parameter, first, second)], lr, count)
            return
        # As many rows as fit the cache with all that is kept of them, in whole vectors of 16.
        rows = max(16, _AT_ONCE // parameter.shape[1] // 16 * 16)
        columns = (torch.split(each, rows) for each in (whole, parameter, first, second, light))
        for thin, some, *moments, copy in zip(*columns, strict=True):
            exact = self._buffer(some.shape, some.dtype).copy_(thin)
            self._all([(exact, some, *moments)], lr, count)
            copy.copy_(some)

    def _all(
        self, given: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], lr: Tensor, count: Tensor
    ) -> None:
        """Update from (gradient, parameter, first moment, second moment) tuples."""
        if _FUSED is None:
            for gradient, parameter, first, second in given:
                adamw(parameter, gradient, first, second, lr, count, self.weight_decay)
            return
        if not given:
            return
        gradients, parameters, first_moments, second_moments = (
            list(column) for column in zip(*given, strict=True)
        )
        _FUSED(
            parameters,
            gradients,
            first_moments,
            second_moments,
            [],
            [count] * len(given),
            amsgrad=False,
            lr=lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def _buffer(self, shape: torch.Size, kind: torch.dtype) -> Tensor:
        """A reused buffer: the fewer there are, the more of them fit the CPU cache."""
        key = (shape.numel(), kind)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(shape.numel(), dtype=kind)
        return self._buffers[key].view(shape)
