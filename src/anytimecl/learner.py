"""The tuned model: a copy of the tail that takes one step for every new example.

Only the blocks and the "other" bias train; final norm, projection and label embeddings stay as
they are, so that the features stay in the space of the text. This is the step by autograd, as the
paper says it; `fast/` has the same step written out.
"""

from __future__ import annotations

import math
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

FEW = 3  # examples of a label, with which half of the eagerness is gone


class Learner:
    """Owns the tuned weights and their optimiser; knows nothing of label texts or storage."""

    def __init__(self, spec: Spec, tail: Mapping[str, Tensor], config: LearnerConfig) -> None:
        self.spec = spec
        self.config = config
        self.original = {name: value.detach() for name, value in tail.items()}
        self.params = {
            name: value.clone() if spec.tail.trains(name) else value
            for name, value in self.original.items()
        }
        self._blocks = (
            ()
            if config.tune == "classifier"
            else tuple(name for name in self.params if spec.tail.trains(name))
        )
        some = next(iter(self.params.values()))
        self.other = some.new_zeros(())  # the logit of "other", in units of a cosine
        # [label, dim], of a trainable classifier, or what images of each label look like.
        self.shifts = some.new_zeros(0, spec.dim)
        self.optimiser = self.fresh_optimiser()

    @property
    def alike(self) -> bool:
        """Whether steps are the same to the bit with one of torch's threads as with all of them."""
        return torch.get_num_threads() == 1

    def trainable(self) -> dict[str, Tensor]:
        """What learning changes, by name."""
        names = {name: self.params[name] for name in self._blocks}
        shifts = {} if self.config.tune == "block" else {"classifier": self.shifts}
        return names | {"other": self.other} | shifts

    def fresh_optimiser(self) -> AdamW:
        """AdamW over what learning changes, with nothing gathered yet."""
        return AdamW(self.trainable(), self.config.weight_decay)

    def original_images(self, tokens: Tensor | TailInput) -> Tensor:
        """Unit vectors [example, dim], from the weights as they always were."""
        return images_of(self.original, self.spec.tail, tokens)

    def tuned_images(self, tokens: Tensor | TailInput) -> Tensor:
        """Unit vectors [example, dim], from the weights as they are now."""
        return images_of(self.params, self.spec.tail, tokens)

    def both_images(self, tokens: Tensor | TailInput) -> tuple[Tensor, Tensor]:
        """`original_images` and `tuned_images`."""
        tail = self.spec.tail
        return images_of(self.original, tail, tokens), images_of(self.params, tail, tokens)

    def original_logits(self, tokens: Tensor | TailInput, vectors: Tensor) -> Tensor:
        """[example, label], from the weights as they always were."""
        return self.named_by_original(self.original_images(tokens), vectors)

    def tuned_logits(self, tokens: Tensor | TailInput, vectors: Tensor, rows: Tensor) -> Tensor:
        """[example, label], from the weights as they are now."""
        return self.named_by_tuned(self.tuned_images(tokens), vectors, rows)

    def moved(self, vectors: Tensor, shifts: Tensor, rows: Tensor) -> Tensor:
        """Label embeddings [label, dim], moved to where these images or learning have them."""
        return F.normalize(shifted(vectors, shifts, rows), dim=-1) if len(shifts) else vectors

    def named(self, images: Tensor, vectors: Tensor) -> Tensor:
        """Logits [image, label] of unit vectors [image, dim] and [label, dim]."""
        return self.spec.logit_scale * images @ vectors.T

    def named_by_original(self, images: Tensor, vectors: Tensor) -> Tensor:
        """The same of the original model; all alike where labels are but codes to it."""
        found = self.named(images, vectors)
        return found if self.spec.names else torch.zeros_like(found)

    def named_by_tuned(self, images: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
        """The same of the tuned model."""
        return self.named(images, self.moved(vectors, self.shifts, rows))

    @property
    def other_logit(self) -> Tensor:
        """The logit of "none of these"."""
        return self.spec.logit_scale * self.other

    def begin(self, logit: float) -> None:
        """Place "other" a little below the logit that the very first example gives its label.

        Where cosines lie differs from model to model; five logits below, "other" takes under one
        per cent from a right answer, and its mass means something from the start.
        """
        self.other.fill_((logit - 5) / self.spec.logit_scale)

    def look_ahead(self, batch: Batch) -> Update:
        """Forward and backward; nothing changes, so predictions may go on meanwhile."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.trainable().items()}
        with torch.enable_grad():
            loss, logits, images = self._loss(leaves, batch)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        # A key bias cannot change a softmax over keys: what it has for a gradient is rounding.
        gradients = {
            name: gradient
            for name, gradient in zip(leaves, found, strict=True)
            if gradient is not None and not name.endswith("k_proj.bias")
        }
        return Update(logits.detach(), images.detach(), gradients)

    def _loss(self, leaves: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 3 [] under trainable values, with logits [example, label], images [example, dim]."""
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
        """Of the step that learns a surprise: an example that the tuned model had wrong.

        After so many of its label, `learned`. With one step for each example, the first few would
        hardly show at the rate that suits the many; those that were right are learned at that.
        """
        return self.config.lr * (1 + self.config.eager / (1 + (learned / FEW) ** 2))

    def apply(
        self, update: Update, rate: float | Tensor | None = None, count: Tensor | None = None
    ) -> None:
        """The online step, at the plain rate unless told otherwise; its number is counted here.

        Where nothing goes through the host, rate [] and `count` [] live on the device.
        """
        if isinstance(rate, Tensor) and count is not None:
            self.update(update.gradients, rate, count)
            return
        self.optimiser.steps += 1
        lr = self.config.lr if rate is None else rate
        self.update(update.gradients, *self.other.new_tensor([lr, self.optimiser.steps]))

    def update(self, gradients: Mapping[str, Gradient], lr: Tensor, count: Tensor) -> None:
        """The change alone."""
        self.optimiser.update(self.trainable(), gradients, lr, count)

    def take(self, steps: Steps) -> None:
        """The method, once, as a trainer and a stream both take it: score first, then learn."""
        batch = steps.batch()
        update = self.look_ahead(batch)
        steps.score(update.logits, batch.target, update.images)
        with steps.changing():
            self.apply(update, steps.rate, steps.count)

    def stepper(self, steps: DeviceSteps) -> Callable[[], None]:
        """`take`, over and over, for a stream that is known beforehand."""
        return partial(self.take, steps)

    def apply_offline(
        self, gradients: Mapping[str, Gradient], optimiser: AdamW, progress: float, size: int
    ) -> None:
        """A step of consolidation, `progress` (0 to 1) of the way down the cosine.

        The caller brings a fresh optimiser for each run: moments gathered one example at a time
        say little about batches of thousands.
        """
        least = self.config.offline_least_lr
        lr = max(self.config.offline_lr * size / self.config.offline_batch, least)
        lr = least + (lr - least) * (1 + math.cos(math.pi * progress)) / 2
        optimiser.step(self.trainable(), gradients, lr)

    def decode(
        self, codec: Codec, examples: Sequence[int], records: Sequence[bytes]
    ) -> Tensor | TailInput:
        """Records to what the tail reads; `examples` say whose they are."""
        return codec.decode(records, self.other.device)

    def let_go(self, examples: Sequence[int]) -> None:
        """Nothing of what these looked like may stay."""

    def make_room(self, labels: int) -> None:
        """Rows in the trainable classifier, if there is one, for labels never seen before."""
        missing = labels - len(self.shifts)
        if self.config.tune != "block" and missing > 0:
            self._change_rows(lambda tensor: F.pad(tensor, (0, 0, 0, missing)))

    def imprint(self, rows: Sequence[int], shifts: Tensor) -> None:
        """Labels [row] are compared with images by these [row, dim] beside their texts."""
        missing = max(rows, default=-1) + 1 - len(self.shifts)
        if missing > 0:  # twice as many, so that a new label costs O(1)
            self.shifts = F.pad(self.shifts, (0, 0, 0, max(16, missing, len(self.shifts))))
        self.shifts[list(rows)] = shifts.to(self.shifts)

    def drop_row(self, row: int) -> None:
        """A label is forgotten; those behind it move up."""
        if self.config.tune != "block":
            self._change_rows(lambda tensor: _without(tensor, row))
        else:
            self.shifts = _without(self.shifts, row)

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        first, second = self.optimiser.moments["classifier"]
        self.shifts = change(self.shifts)
        self.optimiser.moments["classifier"] = (change(first), change(second))

    def state(self) -> dict[str, Tensor]:
        """Everything that learning changed; `restore` takes it back."""
        state = {f"weights.{name}": p for name, p in self.trainable().items()}
        for name, (first, second) in self.optimiser.moments.items():
            state[f"first.{name}"], state[f"second.{name}"] = first, second
        return state | {"steps": torch.tensor(self.optimiser.steps)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state` was taken."""
        if "weights.classifier" in state:
            self.make_room(len(state["weights.classifier"]))
        current = self.state()
        if state.keys() != current.keys() or any(
            state[name].shape != value.shape for name, value in current.items()
        ):
            raise CheckpointError("The checkpoint holds the weights of another model or setting.")
        for name, value in current.items():
            value.copy_(state[name])
        self.optimiser.steps = int(state["steps"])


def _without(tensor: Tensor, row: int) -> Tensor:
    return torch.cat([tensor[:row], tensor[row + 1 :]])


def shifted(vectors: Tensor, shifts: Tensor, rows: Tensor) -> Tensor:
    """Label embeddings [label, dim], each with the row that there is for it, if there is one."""
    known = ((rows >= 0) & (rows < len(shifts))).unsqueeze(1)
    return vectors + torch.where(known, shifts[rows.clamp(0, len(shifts) - 1)], 0.0)
