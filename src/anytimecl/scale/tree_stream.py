"""A tree over a stream known in advance, for experiments on a CPU or a GPU.

Between two splits leaves are independent, so each learns its part of the stream at once, with the
same steps in the same order as one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from anytimecl.backbone.prior import Prior
from anytimecl.backbone.spec import Spec
from anytimecl.blend import blend
from anytimecl.scale.instances import instances_of
from anytimecl.scale.routes import Routes, two_means
from anytimecl.settings import Settings
from anytimecl.stream import ExampleSource, StreamLearner
from anytimecl.tail import Params, TailInput


class LeafStream(StreamLearner):
    """A leaf; a child continues from its parent's state."""

    def inherit(self, parent: LeafStream, members: Sequence[int]) -> None:
        """Take the parent's weights and evidence, and these of its examples as learned.

        Statistics and instances are of these examples only.
        """
        for index in members:
            label = self._label_of[index]
            self._enter(label)
            self._at.append(index)
            self._sampler.add(len(self._at), label)
            self._target[index] = self.rows[label]
        self.learner.restore(parent.learner.state())
        self.count.fill_(self.learner.optimiser.steps)
        state = parent.estimates.state()
        state["labels"] = {name: state["labels"][name] for name in self.labels}
        self.model.estimates = type(parent.estimates).restored(state)
        self.model.weights = dict(parent.model.weights)
        self.model.familiar = parent.model.familiar
        self._learned = Counter({name: self.estimates.of(name).seen for name in self.labels})
        labels = [self._label_of[index] for index in members]
        images = self._original_images(members).cpu()
        self.model.count(range(1, len(members) + 1), labels, images)
        place = {index: number for number, index in enumerate(parent.members, 1)}
        numbers = {place[index]: number for number, index in enumerate(members, 1)}
        self.model.instances.restore(instances_of(parent.model, numbers, self.labels))
        own = [seen for seen in parent.model.evidence if seen.example in numbers]
        self.model.evidence.extend(seen._replace(example=numbers[seen.example]) for seen in own)

    @property
    def members(self) -> list[int]:
        """Learned examples, in order."""
        return self._at


class TreeStream:
    """The tree; `routing` [example, dim] are the embeddings for routing."""

    leaf_type: type[LeafStream] = LeafStream

    def __init__(
        self,
        spec: Spec,
        tail: Params,
        settings: Settings,
        examples: Tensor | TailInput | ExampleSource,
        labels: Sequence[str],
        vectors: Mapping[str, Tensor],
        routing: Tensor,
        capacity: int | None,
        prior: Prior | None = None,
    ) -> None:
        self._made = partial(
            self.leaf_type, spec, tail, settings, examples, labels, vectors, prior=prior
        )
        self._settings, self._vectors = settings, vectors
        self._routing = routing.cpu()
        self._capacity = capacity
        self.routes = Routes.single(routing.shape[1])
        self.leaves: dict[int, LeafStream] = {0: self._made()}
        self._waiting: dict[int, list[int]] = {0: []}

    def learn(self, indices: Sequence[int]) -> None:
        """One online step for each example, in its leaf."""
        for index in indices:
            leaf = self.routes.leaf_of(self._routing[index])
            self._waiting[leaf].append(index)
            size = len(self.leaves[leaf].members) + len(self._waiting[leaf])
            if self._capacity is not None and size > self._capacity:
                self._split(leaf)
        for leaf in self.leaves:
            self._flush(leaf)

    def _flush(self, leaf: int) -> None:
        self.leaves[leaf].learn(self._waiting[leaf])
        self._waiting[leaf] = []

    def _split(self, leaf: int) -> None:
        self._flush(leaf)
        parent = self.leaves[leaf]
        members = list(parent.members)
        halves = two_means(self._routing[members])
        if halves is None:
            return
        self.routes, new = self.routes.split(leaf, halves.centres)
        for part, child in enumerate(new):
            own = [m for m, side in zip(members, halves.side.tolist(), strict=True) if side == part]
            self.leaves[child] = self._made()
            self.leaves[child].inherit(parent, own)
            self._waiting[child] = []
        del self.leaves[leaf], self._waiting[leaf]
        for child in new:
            if len(self.leaves[child].members) > (self._capacity or 0):
                self._split(child)

    @torch.no_grad()
    def answers(
        self, images: Sequence[tuple[Tensor | TailInput, Tensor]], names: Sequence[str], name: str
    ) -> Tensor:
        """Blended probabilities [image, label] for batches of (tokens, routing vectors)."""
        embedded = torch.stack([self._vectors[label] for label in names])
        parts = []
        for tokens, routing in images:
            leaves = [self.routes.leaf_of(vector) for vector in routing.cpu()]
            values = torch.zeros(len(leaves), len(names), device=embedded.device)
            for leaf in set(leaves):  # every image of the batch, of which some are its own
                own = torch.tensor([at == leaf for at in leaves], device=embedded.device)
                opinions = self.leaves[leaf].opinions(tokens, names, embedded)
                values[own] = blend(name, opinions)[own]
            parts.append(values)
        return torch.cat(parts)
