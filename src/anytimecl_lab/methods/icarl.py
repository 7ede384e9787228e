"""iCaRL (Rebuffi et al., 2017): few exemplars by herding, distillation, nearest mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.tail import TailInput
from anytimecl_lab.examples import CHUNK
from anytimecl_lab.methods.lwf import LwF
from anytimecl_lab.world import World


class ICaRL(LwF):
    """`memory` exemplars in total, the same number per class; 2000 as in the paper.

    Deviations forced by the setting: outputs are cosines with label embeddings, so distillation is
    over a softmax, not sigmoids; a class may come back, and then exemplars are chosen from the old
    ones and the new examples; and nearest mean of exemplars applies only if every candidate has
    exemplars. Otherwise the tuned block predicts with label embeddings.
    """

    def __init__(
        self, world: World, *, memory: int = 2000, epochs: int = 32, batch: int = 256
    ) -> None:
        super().__init__(world, epochs=epochs, batch=batch)
        self.memory = memory
        self.exemplars: dict[str, list[int]] = {}
        self.means: dict[str, Tensor] = {}

    def learn(self, examples: Sequence[int]) -> None:
        """Train on new examples and exemplars, then choose exemplars again."""
        kept = [i for some in self.exemplars.values() for i in some]
        super().learn([*examples, *kept])
        each = max(1, self.memory // len(self.rows))
        pools: dict[str, list[int]] = {name: [] for name in self.rows}
        for i in [*kept, *examples]:
            pools[self.world.labels[i]].append(i)
        for name, pool in pools.items():
            vectors = self._embedded(pool)
            chosen = herd(vectors, each)
            self.exemplars[name] = [pool[k] for k in chosen]
            self.means[name] = F.normalize(vectors[chosen].mean(0), dim=-1)

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Nearest mean of exemplars, if all candidates have one."""
        if any(name not in self.means for name in names):
            return super().predict(tokens, names)
        with torch.no_grad():
            images = self.world.image_vectors(self._weights(), tokens)
        means = torch.stack([self.means[name] for name in names])
        return (self.world.spec.logit_scale * images @ means.T).softmax(1)

    @torch.no_grad()
    def _embedded(self, pool: Sequence[int]) -> Tensor:
        parts = [pool[start : start + CHUNK] for start in range(0, len(pool), CHUNK)]
        weights = self._weights()
        return torch.cat(
            [self.world.image_vectors(weights, self.world.take(part)) for part in parts]
        )


def herd(vectors: Tensor, count: int) -> list[int]:
    """Rows of [row, dim] whose running mean stays nearest to the overall mean, in order of choice.

    >>> herd(torch.tensor([[0.0], [1.0], [5.0], [2.0]]), 2)
    [3, 1]
    """
    mean, total = vectors.mean(0), torch.zeros_like(vectors[0])
    chosen: list[int] = []
    taken = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
    for size in range(1, min(count, len(vectors)) + 1):
        distance = (mean - (total + vectors) / size).norm(dim=1)
        best = int(distance.masked_fill(taken, torch.inf).argmin())
        taken[best] = True
        total = total + vectors[best]
        chosen.append(best)
    return chosen
