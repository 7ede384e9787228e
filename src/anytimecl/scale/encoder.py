"""Another encoder under the tuned tail: its own tokens and block, one linear layer to the labels.

An encoder that knows images only (DINOv2) joins a model with a text side: the label vectors stay
those of that model, and a linear layer brings the encoder's features into their space. The layer
learns together with the block, at a rate of its own, since it starts from nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone.spec import Spec
from anytimecl.learner import BETAS, EPSILON, Learner, LearnerConfig
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import Params, Seen
from anytimecl.thin import Thin

LAYER = "visual_projection.weight"
# A smaller block that was made for no text has further to go than CLIP's, with every example.
ENCODER = LearnerConfig(lr=3e-5, eager=0.0)


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
        rates: LayerRates | None = None,
    ) -> None:
        super().__init__(spec, tail, config)
        self.params[LAYER] = self.original[LAYER].clone()
        self.rates = rates or LayerRates()

    @property
    def written_out(self) -> bool:
        """The step that is written out knows nothing of the layer."""
        return False

    def trainable(self) -> dict[str, Tensor]:
        """What learning changes, by name."""
        return super().trainable() | {LAYER: self.params[LAYER]}

    def update(self, gradients: Mapping[str, Tensor | Thin], lr: Tensor, count: Tensor) -> None:
        """The same, with the layer at a rate of its own."""
        rest = {name: gradient for name, gradient in gradients.items() if name != LAYER}
        super().update(rest, lr, count)
        layer = gradients[LAYER]
        assert isinstance(layer, Tensor)
        own = self.rates.first * self.rates.half / (self.rates.half + count)
        _adamw(self.params[LAYER], layer, *self.optimiser.moments[LAYER], own, count, self.config)


def _adamw(
    weight: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    rate: Tensor,  # []
    count: Tensor,  # []
    config: LearnerConfig,
) -> None:
    """AdamW in place, at a rate that lives on the device."""
    first.lerp_(gradient, 1 - BETAS[0])
    second.lerp_(gradient.square(), 1 - BETAS[1])
    weight.mul_(1 - rate * config.weight_decay)
    size = (second / (1 - BETAS[1] ** count)).sqrt_().add_(EPSILON)
    weight.sub_(rate / (1 - BETAS[0] ** count) * first / size)


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
        rates: LayerRates | None = None,
    ) -> None:
        super().__init__(spec, tail, settings, examples, labels, vectors)
        self.learner: JointLearner = JointLearner(spec, tail, settings.learner, rates)
        self.learner.make_room(len(set(labels)))
