"""WiSE-FT (Wortsman et al., 2022): fine-tune, then average weights with the original's."""

from __future__ import annotations

from anytimecl.tail import Params
from anytimecl_lab.methods.tuned import Sequential
from anytimecl_lab.world import World


class WiseFt(Sequential):
    """`(1 - mix) * original + mix * tuned`, the paper's recommended half unless told otherwise.

    Forced by the setting: WiSE-FT knows one task. Here fine-tuning goes on from stage to stage,
    and every prediction is made with the average of its weights and the original ones.
    """

    def __init__(
        self, world: World, *, mix: float = 0.5, epochs: int = 32, batch: int = 256
    ) -> None:
        super().__init__(world, epochs=epochs, batch=batch)
        self.mix = mix

    def _weights(self) -> Params:
        tail = self.world.tail
        return self._with({n: tail[n].lerp(tuned, self.mix) for n, tuned in self.block.items()})
