"""AnytimeCL, online: one step for every example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from torch import Tensor

from anytimecl.bench.methods._base import Method
from anytimecl.bench.world import World
from anytimecl.blend import BLENDS, ETA, Estimates, blend
from anytimecl.learner import LearnerConfig
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import Seen


class Online(Method):
    """The method of this project, as `AnytimeClassifier` runs it, all blends read at once.

    `batch` keeps the ratio of learning rate to batch size, as the paper's ablation does. `etas`
    are further memories of the estimates, read as "ocw eta=0.9" and so on: estimates follow
    from the same scored examples, so they need no run of their own. `paper` is the paper's
    setting where this project's default differs: the model's own scale in the loss, the same
    learning rate for every example, and OCW.
    """

    online = True

    def __init__(
        self,
        world: World,
        *,
        batch: int = 32,
        beta: float = 0.1,
        sampler: str = "class_balanced",
        tune: Literal["block", "classifier", "both"] = "block",
        paper: bool = False,
        etas: Sequence[float] = (),
    ) -> None:
        super().__init__(world)
        plain = LearnerConfig()
        config = replace(
            plain, batch=batch, beta=beta, tune=tune, lr=plain.lr * batch / plain.batch
        )
        config = replace(config, scale=None, eager=0.0) if paper else config
        settings = Settings(seed=world.seed, sampler=sampler, learner=config)
        self.default = "ocw" if paper else settings.blend
        self.stream = StreamLearner(
            world.spec, world.tail, settings, world.examples, world.labels, world.vectors
        )
        self.etas = [Estimates(eta) for eta in etas]
        self.stream.estimates = _Shared(settings.eta, self.etas)

    def learn(self, examples: Sequence[int]) -> None:
        """One online step for each."""
        self.stream.learn(examples)

    def predict(self, tokens: Tensor | Seen, names: Sequence[str]) -> Tensor:
        """The default blend."""
        return self.readings(tokens, names)[self.default]

    def readings(self, tokens: Tensor | Seen, names: Sequence[str]) -> dict[str, Tensor]:
        """Every blend."""
        opinions = self.stream.opinions(tokens, names, self.world.label_vectors(names))
        read = {name: blend(name, opinions) for name in BLENDS}
        for estimates in self.etas:
            records = [estimates.of(name) for name in names]
            other = replace(opinions, records=records, overall=estimates.overall)
            for name in (self.default, "ocw"):
                read[f"{name} eta={estimates.eta:g}"] = blend(name, other)
        return read


class _Shared(Estimates):
    """Estimates that tell others of every scored example."""

    def __init__(self, eta: float = ETA, others: Sequence[Estimates] = ()) -> None:
        super().__init__(eta)
        self._others = others

    def add(self, label: str, *, tuned: bool, original: bool) -> None:
        for estimates in self._others:
            estimates.add(label, tuned=tuned, original=original)
        super().add(label, tuned=tuned, original=original)
