"""Another encoder under the tuned tail: its own tokens and block, one linear layer to the labels.

An encoder that knows images only (DINOv2) joins a model with a text side: the label vectors stay
those of that model, and a linear layer brings the encoder's features into their space. The layer
learns together with the block, at a rate of its own, since it starts from nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone.spec import Spec
from anytimecl.learner import AdamW, Learner, LearnerConfig, Update
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import Params, Seen

LAYER = "visual_projection.weight"
LAYER_RATE = 1e-3  # chosen on training images held out: benchmarks/encoders.py --validation


def join(encoder: Backbone, labels: Backbone, seed: int = 0) -> Backbone:
    """`encoder` with the label space of `labels`, through a linear layer that knows nothing yet."""
    if LAYER in encoder.tail:
        return encoder
    dim = labels.spec.dim
    identity = f"{encoder.spec.fingerprint} {labels.spec.fingerprint} {seed}"
    spec = dataclasses.replace(
        encoder.spec,
        name=f"{encoder.spec.name} in the label space of {labels.spec.name}",
        dim=dim,
        logit_scale=labels.spec.logit_scale,
        weights=hashlib.sha256(identity.encode()).hexdigest(),
    )
    layer = fresh_layer(dim, encoder.spec.tail.width, seed).to(encoder.device)
    return dataclasses.replace(
        encoder,
        spec=spec,
        tail=encoder.tail | {LAYER: layer},
        text=labels.text,
        templates=labels.templates,
        label_cache=labels.label_cache,
    )


def fresh_layer(dim: int, width: int, seed: int) -> Tensor:
    """[dim, width]: a random rotation, so that what is alike stays alike."""
    noise = torch.randn(max(dim, width), min(dim, width), generator=_generator(seed))
    rotation: Tensor = torch.linalg.qr(noise.double()).Q.float()
    return (rotation if dim >= width else rotation.T).contiguous()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class JointLearner(Learner):
    """A learner whose last linear layer learns too."""

    def __init__(
        self,
        spec: Spec,
        tail: Mapping[str, Tensor],
        config: LearnerConfig,
        layer_rate: float = LAYER_RATE,
    ) -> None:
        super().__init__(spec, tail, config)
        self.params[LAYER] = self.original[LAYER].clone()
        self.layer_rate = layer_rate

    def trainable(self) -> dict[str, Tensor]:
        """What learning changes, by name."""
        return super().trainable() | {LAYER: self.params[LAYER]}

    def apply(self, update: Update, count: Tensor | None = None) -> None:
        """The online step: the layer's rate is its own."""
        if count is None:
            self.optimiser.steps += 1
            count = torch.tensor(float(self.optimiser.steps), device=self.other.device)
        rest = {name: g for name, g in update.gradients.items() if name != LAYER}
        layer = {LAYER: update.gradients[LAYER]}
        self.optimiser.update(self.trainable(), rest, self.config.lr, count)
        self.optimiser.update(self.trainable(), layer, self.layer_rate, count)

    def apply_offline(
        self, gradients: Mapping[str, Tensor], optimiser: AdamW, progress: float, size: int
    ) -> None:
        """A step of consolidation, for all alike: the layer has found its place by then."""
        super().apply_offline(gradients, optimiser, progress, size)


class EncoderStream(StreamLearner):
    """A whole stream learned by a joined encoder, from resident tokens."""

    def __init__(
        self,
        spec: Spec,
        tail: Params,
        settings: Settings,
        examples: Tensor | Seen,
        labels: Sequence[str],
        vectors: Mapping[str, Tensor],
        layer_rate: float = LAYER_RATE,
    ) -> None:
        super().__init__(spec, tail, settings, examples, labels, vectors)
        self.learner = JointLearner(spec, tail, settings.learner, layer_rate)
        self.learner.make_room(len(set(labels)))
