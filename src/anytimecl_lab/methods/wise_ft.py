"""WiSE-FT (Wortsman et al., 2022): fine-tuning, then weight averaging with the original model."""

from __future__ import annotations

from anytimecl.tail import Params
from anytimecl_lab.methods.tuned import Sequential
from anytimecl_lab.world import World


class WiseFt(Sequential):
    """`(1 - mix) * original + mix * tuned`, with the paper's recommended 0.5 by default.

    Deviation: WiSE-FT is for one task. Here fine-tuning continues over stages, and predictions use
    the average of the current and the original weights.
    """

    def __init__(
        self, world: World, *, mix: float = 0.5, epochs: int = 32, batch: int = 256
    ) -> None:
        super().__init__(world, epochs=epochs, batch=batch)
        self.mix = mix

    def _weights(self) -> Params:
        tail = self.world.tail
        return self._with({n: tail[n].lerp(tuned, self.mix) for n, tuned in self.block.items()})
