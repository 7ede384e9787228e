"""The tuned model: a copy of the tail that takes one step for every new example.

Only the blocks and the "other" bias train; final norm, projection and label embeddings stay as
they are, so that the features stay in the space of the text.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl._fused import fused_step
from anytimecl.backbone.spec import Spec
from anytimecl.errors import CheckpointError
from anytimecl.light import Precision, copies
from anytimecl.loss import anytime_loss
from anytimecl.tail import Params, Seen, embed, look
from anytimecl.thin import Question, Thin, supports, thin_step

BETAS, EPSILON = (0.9, 0.999), 1e-8  # of AdamW
FEW = 3  # examples of a label, with which half of the eagerness is gone


@dataclass(frozen=True)
class LearnerConfig:
    """The paper's settings for learning online, and offline from the whole memory."""

    batch: int = 32
    lr: float = 9.375e-6  # 6e-4 * 32 / 2048
    eager: float = 3.0  # a surprise of a new label is learned at (1 + eager) * lr; 0 in the paper
    weight_decay: float = 0.05
    beta: float = 0.1
    scale: float | None = 35.0  # of the cosines in the loss; None: the model's own, as in the paper
    offline_batch: int = 2048
    offline_lr: float = 6e-4  # at that batch; a smaller one takes proportionally less
    offline_least_lr: float = 1e-6
    tune: Literal["block", "classifier", "both"] = "block"
    precision: Precision = "auto"  # of a step's products; "auto": bfloat16 where that is faster

    def __post_init__(self) -> None:
        """Refuse what cannot be learned with."""
        if self.tune not in ("block", "classifier", "both"):
            raise ValueError(f'tune is "block", "classifier" or "both", not {self.tune!r}.')
        if self.precision not in get_args(Precision):
            known = ", ".join(f'"{name}"' for name in get_args(Precision))
            raise ValueError(f"precision is one of {known}, not {self.precision!r}.")
        if self.batch < 1 or self.offline_batch < 1:
            raise ValueError("A batch holds at least one example.")
        if not 0 <= self.eager < math.inf:
            raise ValueError(f"eager is 0 or more, not {self.eager!r}.")


@dataclass(frozen=True)
class Batch:
    """Examples to learn from, and the labels they are told apart from."""

    tokens: Tensor | Seen
    target: Tensor  # [example], index into `vectors`
    vectors: Tensor  # [label, dim], unit: embeddings of the candidate labels
    rows: Tensor  # [label], each label's number in order of first appearance; -1: never seen
    mask: Tensor | None = None  # [example, label]; 0, or -inf where a label is no candidate
    weight: Tensor | None = None  # [example], sum 1: of each in the loss; None: all alike


@dataclass(frozen=True)
class Update:
    """What a batch teaches, worked out but not yet applied."""

    logits: Tensor  # [example, label], from before the update; -inf where not a candidate
    gradients: Mapping[str, Tensor | Thin]
    image: Tensor | None = None  # [dim], the first as the original model sees it, if known

    def whole(self) -> dict[str, Tensor]:
        """Every gradient multiplied out."""
        return {n: g.whole() if isinstance(g, Thin) else g for n, g in self.gradients.items()}


class AdamW:
    """AdamW over named tensors, in place."""

    def __init__(self, parameters: Mapping[str, Tensor], weight_decay: float) -> None:
        self.weight_decay = weight_decay
        self.steps = 0
        self.moments = {
            n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in parameters.items()
        }
        # Fresh memory for large gradients would cost a CPU more than working them out.
        self._rooms: dict[tuple[int, torch.dtype], Tensor] = {}

    def step(
        self,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor | Thin],
        lr: float,
        light: Mapping[str, Tensor],
    ) -> None:
        """Change the parameters that have a gradient, and their copies in `light`."""
        self.steps += 1
        count, rate = next(iter(parameters.values())).new_tensor([self.steps, lr])
        self.update(parameters, gradients, rate, light, count)

    def update(
        self,
        parameters: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor | Thin],
        lr: Tensor,
        light: Mapping[str, Tensor],
        count: Tensor,
    ) -> None:
        """The step alone; its rate, `lr` [], and its number, `count` [], live on the device."""
        plain = []
        for name, gradient in gradients.items():
            state = (parameters[name], *self.moments[name])
            if isinstance(gradient, Tensor):
                plain.append((gradient, *state))
            elif parameters[name].is_cuda:
                constants = (*BETAS, EPSILON, self.weight_decay)
                fused_step(gradient, *state, light.get(name), lr, count, constants)
            else:
                self._on_cpu(gradient, *state, light.get(name), lr, count)
        self._adamw(plain, lr, count)
        for name in gradients.keys() & light.keys():
            if isinstance(gradients[name], Tensor):
                light[name].copy_(parameters[name])

    def _on_cpu(
        self,
        gradient: Thin,
        parameter: Tensor,
        first: Tensor,
        second: Tensor,
        light: Tensor | None,
        lr: Tensor,
        count: Tensor,
    ) -> None:
        """One weight: what is worked out is used while the cache still has it."""
        whole = gradient.whole(self._room(parameter.shape, gradient.left.dtype))
        if whole.dtype != parameter.dtype:
            whole = self._room(parameter.shape, parameter.dtype).copy_(whole)
        self._adamw([(whole, parameter, first, second)], lr, count)
        if light is not None:
            light.copy_(parameter)

    def _adamw(
        self, given: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]], lr: Tensor, count: Tensor
    ) -> None:
        """Gradients, each with its parameter and both moments."""
        if not given:
            return
        gradients, parameters, first, second = (list(column) for column in zip(*given, strict=True))
        torch._fused_adamw_(
            parameters,
            gradients,
            first,
            second,
            [],
            [count] * len(given),
            amsgrad=False,
            lr=lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )

    def _room(self, shape: torch.Size, kind: torch.dtype) -> Tensor:
        """For whoever comes next: the fewer there are, the more of them a cache holds."""
        key = (shape.numel(), kind)
        if key not in self._rooms:
            self._rooms[key] = torch.empty(shape.numel(), dtype=kind)
        return self._rooms[key].view(shape)


class Learner:
    """Owns the tuned weights and their optimiser; knows nothing of label texts or storage."""

    def __init__(self, spec: Spec, tail: Mapping[str, Tensor], config: LearnerConfig) -> None:
        self.spec = spec
        self.config = config
        self.original = {name: value.detach() for name, value in tail.items()}
        self.params = {
            name: value.clone() if name.startswith("layers.") else value
            for name, value in self.original.items()
        }
        # What stands for some of them in the products of a step.
        self.light = copies(self.params, config.precision) if self.written_out else {}
        some = next(iter(self.params.values()))
        self.other = some.new_zeros(())  # the logit of "other", in units of a cosine
        self.shifts = some.new_zeros(0, spec.dim)  # [label, dim], of a trainable classifier
        self.optimiser = AdamW(self.trainable(), config.weight_decay)

    @property
    def written_out(self) -> bool:
        """Whether a step of this learner is the one in `thin.py`; autograd takes the others."""
        return self.config.tune == "block" and supports(self.spec.tail)

    @property
    def working(self) -> dict[str, Tensor]:
        """The weights as a step multiplies with them."""
        return self.params | self.light

    def trainable(self) -> dict[str, Tensor]:
        """What learning changes, by name."""
        blocks = {} if self.config.tune == "classifier" else self.params
        names = {name: p for name, p in blocks.items() if name.startswith("layers.")}
        shifts = {} if self.config.tune == "block" else {"classifier": self.shifts}
        return names | {"other": self.other} | shifts

    def stacked(self, names: Sequence[str]) -> Tensor:
        """These weights one behind the other, as a step multiplies with them.

        From now on each is a view of its part.
        """
        weights = self.light or self.params
        whole = torch.cat([weights[name] for name in names])
        weights |= dict(zip(names, whole.chunk(len(names)), strict=True))
        return whole

    def still(self) -> Learner:
        """As it is now, to answer from while this one goes on learning."""
        found, mine = copy.copy(self), self.trainable()
        found.params = {n: p.clone() if n in mine else p for n, p in self.params.items()}
        found.other, found.shifts = self.other.clone(), self.shifts.clone()
        return found

    def tuned_logits(self, tokens: Tensor | Seen, vectors: Tensor, rows: Tensor) -> Tensor:
        """[example, label], from the weights as they are now."""
        return self._logits(self.params, tokens, _shifted(vectors, self.shifts, rows))

    def original_logits(self, tokens: Tensor | Seen, vectors: Tensor) -> Tensor:
        """[example, label], from the weights as they always were."""
        return self.named(self.original_images(tokens), vectors)

    def original_images(self, tokens: Tensor | Seen) -> Tensor:
        """Unit vectors [example, dim], from the weights as they always were."""
        return F.normalize(embed(self.original, self.spec.tail, tokens), dim=-1)

    def named(self, images: Tensor, vectors: Tensor) -> Tensor:
        """Logits [image, label] of unit vectors [image, dim] and [label, dim]."""
        return self.spec.logit_scale * images @ vectors.T

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
        if self.written_out:
            step = thin_step(self.working, self.other, self.spec.tail, self.question(batch))
            return Update(step.logits, {**step.matrices, **step.vectors})
        return self._by_autograd(batch)

    def _by_autograd(self, batch: Batch) -> Update:
        """The same for tails of any kind."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.trainable().items()}
        with torch.enable_grad():
            loss, logits = self._loss(leaves, batch)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        # A key bias cannot change a softmax over keys: what it has for a gradient is rounding.
        gradients = {
            name: gradient
            for name, gradient in zip(leaves, found, strict=True)
            if gradient is not None and not name.endswith("k_proj.bias")
        }
        return Update(logits.detach(), gradients)

    def question(self, batch: Batch) -> Question:
        """The batch as the step that is written out wants it."""
        tokens, size, scale = batch.tokens, len(batch.target), self.spec.logit_scale
        return Question(
            tokens if isinstance(tokens, Seen) else look(tokens, self.spec.tail.norm_eps),
            batch.target,
            batch.vectors,
            self.other.new_zeros(()) if batch.mask is None else batch.mask,
            self.other.new_full((size,), 1 / size) if batch.weight is None else batch.weight,
            scale,
            self.config.scale or scale,
            self.config.beta,
        )

    def _loss(self, leaves: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss [] of a batch under trainable values, and its logits [example, label]."""
        vectors = _shifted(batch.vectors, leaves.get("classifier", self.shifts), batch.rows)
        logits = self._logits({**self.params, **leaves}, batch.tokens, vectors)
        if batch.mask is not None:
            logits = logits + batch.mask
        other = self.spec.logit_scale * leaves["other"]
        soft = (self.config.scale or self.spec.logit_scale) / self.spec.logit_scale
        scaled, scaled_other = soft * logits, soft * other
        loss = anytime_loss(scaled, scaled_other, batch.target, self.config.beta, batch.weight)
        return loss, logits

    def rate(self, learned: int) -> float:
        """Of the step that learns a surprise: an example that the tuned model had wrong.

        After so many of its label, `learned`. With one step for each example, the first few would
        hardly show at the rate that suits the many; those that were right are learned at that.
        """
        return self.config.lr * (1 + self.config.eager / (1 + (learned / FEW) ** 2))

    def apply(self, update: Update, rate: float | None = None) -> None:
        """The online step, at the plain rate unless told otherwise."""
        self.optimiser.steps += 1
        lr = self.config.lr if rate is None else rate
        self.update(update.gradients, *self.other.new_tensor([lr, self.optimiser.steps]))

    def update(self, gradients: Mapping[str, Tensor | Thin], lr: Tensor, count: Tensor) -> None:
        """The step alone; its rate, `lr` [], and its number, `count` [], live on the device."""
        self.optimiser.update(self.trainable(), gradients, lr, self.light, count)

    def apply_offline(
        self, gradients: Mapping[str, Tensor], optimiser: AdamW, progress: float, size: int
    ) -> None:
        """A step of consolidation, `progress` (0 to 1) of the way down the cosine.

        The caller brings a fresh optimiser for each run: moments gathered one example at a time
        say little about batches of thousands.
        """
        least = self.config.offline_least_lr
        lr = max(self.config.offline_lr * size / self.config.offline_batch, least)
        lr = least + (lr - least) * (1 + math.cos(math.pi * progress)) / 2
        optimiser.step(self.trainable(), gradients, lr, self.light)

    def make_room(self, labels: int) -> None:
        """Rows in the trainable classifier, if there is one, for labels never seen before."""
        missing = labels - len(self.shifts)
        if self.config.tune == "block" or missing <= 0:
            return
        first, second = self.optimiser.moments["classifier"]
        grown = [F.pad(tensor, (0, 0, 0, missing)) for tensor in (self.shifts, first, second)]
        self.shifts = grown[0]
        self.optimiser.moments["classifier"] = (grown[1], grown[2])

    def drop_row(self, row: int) -> None:
        """The trainable classifier, if there is one, forgets a label."""
        if self.config.tune == "block":
            return
        tensors = (self.shifts, *self.optimiser.moments["classifier"])
        left = [torch.cat([tensor[:row], tensor[row + 1 :]]) for tensor in tensors]
        self.shifts = left[0]
        self.optimiser.moments["classifier"] = (left[1], left[2])

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
        for name, light in self.light.items():
            light.copy_(self.params[name])
        self.optimiser.steps = int(state["steps"])

    def _logits(self, params: Params, tokens: Tensor | Seen, vectors: Tensor) -> Tensor:
        return self.named(F.normalize(embed(params, self.spec.tail, tokens), dim=-1), vectors)


def _shifted(vectors: Tensor, shifts: Tensor, rows: Tensor) -> Tensor:
    """Label embeddings [label, dim] as a trainable classifier has moved them."""
    if not len(shifts):
        return vectors
    known = ((rows >= 0) & (rows < len(shifts))).unsqueeze(1)
    moved = torch.where(known, shifts[rows.clamp(0, len(shifts) - 1)], 0.0)
    return F.normalize(vectors + moved, dim=-1)
