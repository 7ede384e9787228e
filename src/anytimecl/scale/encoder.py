"""An image-only encoder in the label space of another model, through a linear layer.

An image-only encoder such as DINOv2 is joined with a model that has a text encoder: label
embeddings are that model's, and a linear layer maps the encoder's features into their space. It is
trained together with the block, at its own learning rate, since it is initialised randomly.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone import Backbone
from anytimecl.backbone.spec import Spec
from anytimecl.optimiser import Gradient, adamw
from anytimecl.settings import LearnerConfig
from anytimecl.stream import StreamLearner

LAYER = "visual_projection.weight"
# A smaller block, not pre-trained with text, needs larger steps than CLIP's.
ENCODER = LearnerConfig(lr=3e-5, eager=0.0, imprint=0.0)


@dataclass(frozen=True)
class LayerRates:
    """Learning rates of the layer, chosen on held-out training images (benchmarks/encoders.py).

    High at first, since the layer is random; then low, so that it hardly moves under the block.
    """

    first: float = 1e-3
    half: float = 100.0  # steps after which the rate is halved


def join(encoder: Backbone, labels: Backbone, seed: int = 0) -> Backbone:
    """`encoder` in the label space of `labels`, through a randomly initialised linear layer."""
    if LAYER in encoder.tail:
        return encoder
    dim = labels.spec.dim

    def identity(encoder: Backbone, labels: Backbone) -> str:
        told = f"{encoder.spec.fingerprint} {labels.spec.fingerprint} {seed}"
        return hashlib.sha256(told.encode()).hexdigest()

    spec = dataclasses.replace(
        encoder.spec,
        name=f"{encoder.spec.name} in the label space of {labels.spec.name}",
        dim=dim,
        logit_scale=labels.spec.logit_scale,
        weights=identity(encoder, labels),
    )
    layer = fresh_layer(dim, encoder.spec.tail.width, seed).to(encoder.device)
    return dataclasses.replace(
        encoder,
        spec=spec,
        tail=encoder.tail | {LAYER: layer},
        text=labels.text,
        templates=labels.templates,
        label_cache=labels.label_cache,
        prior=None,  # embeddings depend on the new layer
        former_weights=lambda: identity(encoder.former(), labels.former()),
    )


def fresh_layer(dim: int, width: int, seed: int) -> Tensor:
    """A random rotation [dim, width], which preserves similarities."""
    noise = torch.randn(max(dim, width), min(dim, width), generator=_generator(seed))
    rotation: Tensor = torch.linalg.qr(noise.double()).Q.float()
    return (rotation if dim >= width else rotation.T).contiguous()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class JointLearner(OnlineLearner):
    """A learner that also trains the last linear layer."""

    def __init__(
        self,
        spec: Spec,
        tail: Mapping[str, Tensor],
        config: LearnerConfig,
        rates: LayerRates | None = None,
    ) -> None:
        super().__init__(spec, tail, config)
        self.params[LAYER] = self.original[LAYER].clone()
        self.rates = rates or LayerRates()

    def can_be_written_out(self) -> bool:
        """The hand-written step does not support the layer."""
        return False

    def trainable(self) -> dict[str, Tensor]:
        """Trainable tensors by name."""
        return super().trainable() | {LAYER: self.params[LAYER]}

    def update(self, gradients: Mapping[str, Gradient], lr: Tensor, count: Tensor) -> None:
        """The same, with the layer at its own learning rate."""
        rest = {name: gradient for name, gradient in gradients.items() if name != LAYER}
        super().update(rest, lr, count)
        layer = gradients[LAYER]
        assert isinstance(layer, Tensor)
        own = self.rates.first * self.rates.half / (self.rates.half + count)
        moments, decay = self.optimiser.moments[LAYER], self.config.weight_decay
        adamw(self.params[LAYER], layer, *moments, own, count, decay)


class EncoderStream(StreamLearner):
    """`StreamLearner` for a joined encoder, from resident tokens."""

    joined: type[JointLearner] = JointLearner

    def __init__(self, *given: Any, rates: LayerRates | None = None, **options: Any) -> None:
        self.learner_type = partial(self.joined, rates=rates)
        super().__init__(*given, **options)
