"""Another encoder as the tuned model: the paper's DINOv2 with CLIP as the original model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anytimecl.blend import BLENDS, Opinions, blend, unlearned
from anytimecl.errors import ModelError
from anytimecl.scale.encoder import ENCODER, EncoderStream, JointLearner
from anytimecl.settings import Settings
from anytimecl.tail import TailInput
from anytimecl_lab.methods._base import Method
from anytimecl_lab.methods._paper import BLEND, PaperLearner, paper_config, scaled
from anytimecl_lab.world import World


class PaperJointLearner(JointLearner, PaperLearner):
    """Trains the layer that matches dimensions with the block, in the paper's setting."""


class BesideOriginal(EncoderStream):
    """A stream whose original model is not the encoder, but the model with the labels."""

    def __init__(self, *given: Any, seen: Tensor, paper: bool, **options: Any) -> None:
        self._seen = seen  # [example, dim], by the original model
        self.joined = PaperJointLearner if paper else JointLearner
        super().__init__(*given, **options)

    def _original_images(self, indices: Sequence[int]) -> Tensor:
        return self._seen[torch.tensor(indices, device=self._seen.device)]


class JoinedEncoder(Method):
    """The tuned model is the recipe's `encoder`, with a linear layer into the label space.

    The original model, its estimates and OCW are the usual ones. The paper names no learning rates
    for it: they are those of `anytimecl.scale.encoder`, chosen on held-out images, since at the
    rate of CLIP's block a layer that begins at random would hardly move.
    """

    online = True

    def __init__(self, world: World, *, paper: bool = True, lr: float = ENCODER.lr) -> None:
        super().__init__(world)
        if world.second is None:
            raise ModelError('The method "encoder" needs an encoder: encoder = "dinov2-base".')
        config = replace(ENCODER, lr=lr)
        settings = Settings(seed=world.seed, blend=BLEND)
        settings = replace(settings, learner=paper_config(config) if paper else config)
        self.default = settings.name_of("blend")
        spec = world.second.spec
        self.stream = BesideOriginal(
            scaled(spec) if paper else spec,
            world.second.tail,
            settings,
            world.second.examples,
            world.labels,
            world.vectors,
            seen=world.original_vectors,
            paper=paper,
        )

    def learn(self, examples: Sequence[int]) -> None:
        """One online step for each."""
        self.stream.learn(examples)

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Not possible from one encoder's tokens."""
        raise ModelError("This method answers from the tokens of two encoders: ask `both`.")

    def both(
        self, images: Tensor, tokens: Tensor | TailInput, names: Sequence[str]
    ) -> dict[str, Tensor]:
        """Every blend, from the original model's vectors [image, dim] and the encoder's tokens."""
        opinions = self._opinions(images, tokens, names)
        kept = [name for name in BLENDS if name != "pool"]
        return {name: blend(name, opinions) for name in kept}

    @torch.no_grad()
    def _opinions(
        self, images: Tensor, tokens: Tensor | TailInput, names: Sequence[str]
    ) -> Opinions:
        learner, model = self.stream.learner, self.stream.model
        vectors = self.world.label_vectors(names)
        original = learner.named(images, vectors)
        if not any(name in model.rows for name in names):
            return unlearned(original)
        rows = torch.tensor([model.rows.get(name, -1) for name in names], device=vectors.device)
        tuned = learner.tuned_logits(tokens, vectors, rows)
        return model.of_logits(tuned, original, learner.other_logit, images, names)
