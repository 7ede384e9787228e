"""The tuned model: a copy of the tail that takes one AdamW step for each new example.

Only the blocks and the "other" logit are trained; final norm, projection and label embeddings are
frozen, so that image embeddings stay in the text space. This is the reference step, by autograd;
`fast/` has the same step with a hand-written backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec import Codec
from anytimecl.errors import CheckpointError
from anytimecl.loss import anytime_loss
from anytimecl.optimiser import AdamW, Gradient
from anytimecl.settings import LearnerConfig
from anytimecl.step import Batch, DeviceSteps, Steps, Update
from anytimecl.tail import TailInput, images_of

FEW = 3  # learned examples of a label at which `eager` has half its effect


class Learner:
    """The tuned weights and their optimiser; knows nothing of label texts or storage."""

    def __init__(self, spec: Spec, tail: Mapping[str, Tensor], config: LearnerConfig) -> None:
        self.spec = spec
        self.config = config
        self.original = {name: value.detach() for name, value in tail.items()}
        self.params = {
            name: value.clone() if spec.tail.trains(name) else value
            for name, value in self.original.items()
        }
        tuned = () if config.tune == "classifier" else self.params
        self._blocks = [name for name in tuned if spec.tail.trains(name)]
        some = next(iter(self.params.values()))
        self.other = some.new_zeros(())  # the logit of "other", divided by the logit scale
        # [label, dim]: added to the text embeddings; a trainable classifier, or imprinted images.
        self.shifts = some.new_zeros(0, spec.dim)
        self.optimiser = self.fresh_optimiser()

    @property
    def alike(self) -> bool:
        """Whether steps are bit-identical with one torch thread and with all."""
        return torch.get_num_threads() == 1

    def trainable(self) -> dict[str, Tensor]:
        """Trainable tensors by name."""
        names = {name: self.params[name] for name in self._blocks}
        shifts = {} if self.config.tune == "block" else {"classifier": self.shifts}
        return names | {"other": self.other} | shifts

    def fresh_optimiser(self) -> AdamW:
        """AdamW over the trainable tensors, with zero moments."""
        return AdamW(self.trainable(), self.config.weight_decay)

    def original_images(self, tokens: Tensor | TailInput) -> Tensor:
        """Unit image embeddings [example, dim] of the original model."""
        return images_of(self.original, self.spec.tail, tokens)

    def tuned_images(self, tokens: Tensor | TailInput) -> Tensor:
        """Unit image embeddings [example, dim] of the tuned model."""
        return images_of(self.params, self.spec.tail, tokens)

    def both_images(self, tokens: Tensor | TailInput) -> tuple[Tensor, Tensor]:
        """`original_images` and `tuned_images`."""
        tail = self.spec.tail
        return images_of(self.original, tail, tokens), images_of(self.params, tail, tokens)

    def original_logits(self, tokens: Tensor | TailInput, vectors: Tensor) -> Tensor:
        """Logits [example, label] of the original model."""
        return self.named_by_original(self.original_images(tokens), vectors)

    def tuned_logits(self, tokens: Tensor | TailInput, vectors: Tensor, rows: Tensor) -> Tensor:
        """Logits [example, label] of the tuned model."""
        return self.named_by_tuned(self.tuned_images(tokens), vectors, rows)

    def moved(self, vectors: Tensor, shifts: Tensor, rows: Tensor) -> Tensor:
        """Label vectors [label, dim]: text embeddings plus `shifts`, normalised."""
        return F.normalize(shifted(vectors, shifts, rows), dim=-1) if len(shifts) else vectors

    def named(self, images: Tensor, vectors: Tensor) -> Tensor:
        """Logits [image, label] of unit vectors [image, dim] and [label, dim]."""
        return self.spec.logit_scale * images @ vectors.T

    def named_by_original(self, images: Tensor, vectors: Tensor) -> Tensor:
        """The same for the original model; all 0 for an image-only model."""
        found = self.named(images, vectors)
        return found if self.spec.names else torch.zeros_like(found)

    def named_by_tuned(self, images: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
        """The same for the tuned model, with its label vectors."""
        return self.named(images, self.moved(vectors, self.shifts, rows))

    @property
    def other_logit(self) -> Tensor:
        """The logit of "other", []."""
        return self.spec.logit_scale * self.other

    def begin(self, logit: float) -> None:
        """Initialise "other" five logits below the first example's logit for its own label.

        The range of cosines differs between models. Five logits below, "other" takes less than 1 %
        of the probability of a correct prediction, whatever the model.
        """
        self.other.fill_((logit - 5) / self.spec.logit_scale)

    def look_ahead(self, batch: Batch) -> Update:
        """Forward and backward pass; changes nothing, so predictions may run at the same time."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.trainable().items()}
        with torch.enable_grad():
            loss, logits, images = self._loss(leaves, batch)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        # The key bias cannot change a softmax over keys: its gradient is rounding noise.
        gradients = {
            name: gradient
            for name, gradient in zip(leaves, found, strict=True)
            if gradient is not None and not name.endswith("k_proj.bias")
        }
        return Update(logits.detach(), images.detach(), gradients)

    def _loss(self, leaves: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Loss (Eq. 3) [], logits [example, label] and image embeddings [example, dim]."""
        vectors = self.moved(batch.vectors, leaves.get("classifier", self.shifts), batch.rows)
        images = images_of({**self.params, **leaves}, self.spec.tail, batch.tokens)
        logits = self.named(images, vectors)
        if batch.mask is not None:
            logits = logits + batch.mask
        other = self.spec.logit_scale * leaves["other"]
        soft = (self.config.scale or self.spec.logit_scale) / self.spec.logit_scale
        scaled, scaled_other = soft * logits, soft * other
        loss = anytime_loss(scaled, scaled_other, batch.target, self.config.beta, batch.weight)
        return loss, logits, images

    def rate(self, learned: int) -> float:
        """Learning rate for an example that the tuned model predicted wrongly.

        It falls to `lr` with the number of learned examples of the label. Examples that were
        predicted correctly are learned at `lr`.
        """
        return self.config.lr * (1 + self.config.eager / (1 + (learned / FEW) ** 2))

    def apply(
        self, update: Update, rate: float | Tensor | None = None, count: Tensor | None = None
    ) -> None:
        """Apply an update, at `lr` unless a rate is given, and count the step.

        With tensors `rate` [] and `count` [] on the device, nothing goes through the host and the
        caller counts.
        """
        if isinstance(rate, Tensor) and count is not None:
            self.update(update.gradients, rate, count)
            return
        self.optimiser.steps += 1
        lr = self.config.lr if rate is None else rate
        self.update(update.gradients, *self.other.new_tensor([lr, self.optimiser.steps]))

    def update(self, gradients: Mapping[str, Gradient], lr: Tensor, count: Tensor) -> None:
        """Apply gradients as step number `count` [], at learning rate `lr` []."""
        self.optimiser.update(self.trainable(), gradients, lr, count)

    def take(self, steps: Steps) -> None:
        """One online step, of a trainer or of a stream: score the new example, then learn it."""
        batch = steps.batch()
        update = self.look_ahead(batch)
        steps.score(update.logits, batch.target, update.images)
        with steps.changing():
            self.apply(update, steps.rate, steps.count)

    def stepper(self, steps: DeviceSteps) -> Callable[[], None]:
        """A function that takes the next step of a stream."""
        return partial(self.take, steps)

    def decode(
        self, codec: Codec, examples: Sequence[int], records: Sequence[bytes]
    ) -> Tensor | TailInput:
        """Decode records to input of the tail; `examples` are their ids."""
        return codec.decode(records, self.other.device)

    def let_go(self, examples: Sequence[int]) -> None:
        """Drop every cached copy of these examples."""

    def make_room(self, labels: int) -> None:
        """Add rows to the trainable classifier, if there is one, for new labels."""
        missing = labels - len(self.shifts)
        if self.config.tune != "block" and missing > 0:
            self._change_rows(lambda tensor: F.pad(tensor, (0, 0, 0, missing)))

    def drop_row(self, row: int) -> None:
        """Remove a label's row; later rows move up."""
        self._change_rows(lambda tensor: torch.cat([tensor[:row], tensor[row + 1 :]]))

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        self.shifts = change(self.shifts)
        if self.config.tune != "block":
            first, second = self.optimiser.moments["classifier"]
            self.optimiser.moments["classifier"] = (change(first), change(second))

    def state(self) -> dict[str, Tensor]:
        """Trained weights, moments and step count, for `restore`."""
        state = {f"weights.{name}": p for name, p in self.trainable().items()}
        for name, (first, second) in self.optimiser.moments.items():
            state[f"first.{name}"], state[f"second.{name}"] = first, second
        return state | {"steps": torch.tensor(self.optimiser.steps)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state` exactly."""
        if "weights.classifier" in state:
            self.make_room(len(state["weights.classifier"]))
        current = self.state()
        if {n: t.shape for n, t in state.items()} != {n: t.shape for n, t in current.items()}:
            raise CheckpointError("The checkpoint holds the weights of another model or setting.")
        for name, value in current.items():
            value.copy_(state[name])
        self.optimiser.steps = int(state["steps"])


def shifted(vectors: Tensor, shifts: Tensor, rows: Tensor) -> Tensor:
    """Label vectors [label, dim] plus the row of `shifts` for each, if there is one."""
    known = ((rows >= 0) & (rows < len(shifts))).unsqueeze(1)
    return vectors + torch.where(known, shifts[rows.clamp(0, len(shifts) - 1)], 0.0)
