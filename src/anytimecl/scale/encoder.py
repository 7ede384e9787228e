"""Another encoder under the tuned tail: its own tokens and block, one linear layer to the labels.

An encoder that knows images only (DINOv2) joins a model with a text side: the label vectors stay
those of that model, and a linear layer brings the encoder's features into their space. The layer
learns together with the block, at a rate of its own, since it starts from nothing.
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
# A smaller block that was made for no text has further to go than CLIP's, with every example.
ENCODER = LearnerConfig(lr=3e-5, eager=0.0, imprint=0.0)


@dataclass(frozen=True)
class LayerRates:
    """Learning rates of the layer, chosen on training images held out (benchmarks/encoders.py).

    It knows nothing at first and has to hurry; later it should keep still for the block.
    """

    first: float = 1e-3
    half: float = 100.0  # steps after which the rate is half of the first


def join(encoder: Backbone, labels: Backbone, seed: int = 0) -> Backbone:
    """`encoder` with the label space of `labels`, through a linear layer that knows nothing yet."""
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
        prior=None,  # its vectors are those of the fresh layer
        former_weights=lambda: identity(encoder.former(), labels.former()),
    )


def fresh_layer(dim: int, width: int, seed: int) -> Tensor:
    """[dim, width]: a random rotation, so that what is alike stays alike."""
    noise = torch.randn(max(dim, width), min(dim, width), generator=_generator(seed))
    rotation: Tensor = torch.linalg.qr(noise.double()).Q.float()
    return (rotation if dim >= width else rotation.T).contiguous()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class JointLearner(OnlineLearner):
    """A learner whose last linear layer learns too."""

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
        """The step that is written out knows nothing of the layer."""
        return False

    def trainable(self) -> dict[str, Tensor]:
        """What learning changes, by name."""
        return super().trainable() | {LAYER: self.params[LAYER]}

    def update(self, gradients: Mapping[str, Gradient], lr: Tensor, count: Tensor) -> None:
        """The same, with the layer at a rate of its own."""
        rest = {name: gradient for name, gradient in gradients.items() if name != LAYER}
        super().update(rest, lr, count)
        layer = gradients[LAYER]
        assert isinstance(layer, Tensor)
        own = self.rates.first * self.rates.half / (self.rates.half + count)
        moments, decay = self.optimiser.moments[LAYER], self.config.weight_decay
        adamw(self.params[LAYER], layer, *moments, own, count, decay)


class EncoderStream(StreamLearner):
    """A whole stream learned by a joined encoder, from resident tokens."""

    joined: type[JointLearner] = JointLearner

    def __init__(self, *given: Any, rates: LayerRates | None = None, **options: Any) -> None:
        self.learner_type = partial(self.joined, rates=rates)
        super().__init__(*given, **options)
