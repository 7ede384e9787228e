"""The state of a classifier that predictions need, without examples, for distribution to replicas.

A memory of a million examples is some 4 GB; predictions need only the weights, the experts' state,
the label embeddings, and a digest of each learned image.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.acceleration import DeviceStreams
from anytimecl.backbone import Backbone, Spec
from anytimecl.backbone.prior import Prior
from anytimecl.backbone.text import LabelCache
from anytimecl.classifier import AnytimeClassifier
from anytimecl.learner import Learner
from anytimecl.lock import TurnLock
from anytimecl.memory.about import sound
from anytimecl.model import Model
from anytimecl.predicting import Predicting
from anytimecl.scale.told import _no_trunk
from anytimecl.serve.problems import Problem
from anytimecl.settings import Settings

EmbedLabels = Callable[[Sequence[str], Sequence[str] | None], Tensor]  # as `Backbone` does
MOMENTS = "first.", "second."  # moments of the optimiser, which predictions do not need
ELSEWHERE = (
    "This service answers from a copy of what was learned, without the examples: ask the service "
    "that owns the memory."
)


class Contents(NamedTuple):
    """Learned images, sorted by digest; of copies, the newest."""

    digests: NDArray[np.int64]  # [image]
    labels: NDArray[np.int32]  # [image], indices into `names`
    names: list[str]

    def find(self, digest: int) -> str | None:
        """The label of a learned image."""
        at = int(np.searchsorted(self.digests, digest))
        if at < len(self.digests) and self.digests[at] == digest:
            return self.names[int(self.labels[at])]
        return None


@dataclass(frozen=True)
class AnswerState:
    """The state of a classifier at one event of its memory, as immutable values and arrays."""

    event: int
    settings: str
    spec: dict[str, Any]
    templates: tuple[str, ...]
    counts: dict[str, int]  # examples by label
    model: dict[str, Any]  # `Model.plain`
    arrays: dict[str, NDArray[Any]] = field(repr=False)  # `Model.tensors`
    tail: dict[str, NDArray[Any]] = field(repr=False)
    prior: dict[str, NDArray[Any]] | None = field(repr=False)
    vectors: NDArray[np.float32] = field(repr=False)  # [label, dim], of the labels in `counts`
    contents: Contents = field(repr=False)


def state_of(folder: Path, backbone: Backbone) -> AnswerState:
    """From the memory in a folder, which another process may own."""
    with AnytimeClassifier.open(folder, model=backbone, read_only=True) as classifier:
        return taken_from(classifier)


def taken_from(classifier: AnytimeClassifier) -> AnswerState:
    """The current state of a classifier."""
    saved = classifier._trainer.checkpoint()
    known = set(saved.state["labels"])
    counts = {name: n for name, n in classifier.memory.labels().items() if name in known}
    backbone, names = classifier.backbone, list(counts)
    vectors = backbone.embed_labels(names, classifier.settings.templates) if names else None
    prior = backbone.prior
    return AnswerState(
        event=saved.event,
        settings=classifier.settings.to_json(),
        spec=backbone.spec.to_dict(),
        templates=tuple(backbone.templates),
        counts=counts,
        model={key: saved.state[key] for key in saved.state if key != "sampler"},
        arrays=_arrays({n: t for n, t in saved.tensors.items() if not n.startswith(MOMENTS)}),
        tail=_arrays(backbone.tail),
        prior=None if prior is None else _arrays(vars(prior)),
        vectors=np.empty((0, backbone.spec.dim), np.float32)
        if vectors is None
        else vectors.float().cpu().numpy(),
        contents=_contents(classifier, saved.event),
    )


def _contents(classifier: AnytimeClassifier, event: int) -> Contents:
    wanted = (
        "SELECT c.digest, e.label, e.id, c.crc FROM content c JOIN example e ON e.id = c.example "
        "WHERE e.label > 0 AND e.id <= ? ORDER BY e.id"
    )
    with classifier.memory.reading() as db:
        texts = classifier.memory.vocabulary.texts()
        names = list(texts.values())
        number = {label: at for at, label in enumerate(texts)}
        newest = {
            digest: number[label]
            for digest, label, example, crc in db.execute(wanted, (event,))
            if label in number and sound(example, digest, crc)
        }
    digests = np.array(sorted(newest), np.int64)
    labels = np.array([newest[digest] for digest in digests.tolist()], np.int32)
    return Contents(digests, labels, names)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Copies, since shared arrays must not be modified."""
    return {name: torch.tensor(value) for name, value in arrays.items()}


@dataclass(frozen=True, eq=False)
class SharedBackbone(Backbone):
    """A model whose trunk and text encoder are remote, with cached label embeddings."""

    shared: dict[str, int] = field(default_factory=dict, repr=False)  # label -> row
    vectors: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)  # [row, dim]
    embed: EmbedLabels | None = field(default=None, repr=False)  # the remote text encoder

    def embed_labels(self, labels: Sequence[str], templates: Sequence[str] | None = None) -> Tensor:
        """Unit embeddings [label, dim]; new labels are embedded remotely."""
        new = [label for label in labels if label not in self.shared]
        if not new:
            return self.vectors[[self.shared[label] for label in labels]]
        space = json.dumps(templates and list(templates))
        found = self.label_cache.get(space, new, self.spec.dim)
        missing = [label for label in dict.fromkeys(new) if label not in found]
        if missing:
            assert self.embed is not None
            fresh = dict(zip(missing, self.embed(missing, templates), strict=True))
            self.label_cache.put(space, fresh)
            found |= fresh
        known = (found[one] if one in found else self.vectors[self.shared[one]] for one in labels)
        return torch.stack(list(known))


class SnapshotMemory:
    """A memory without examples: label counts and digests only."""

    path = None
    read_only = True
    thumbnails = False
    closed = False

    def __init__(self, state: AnswerState) -> None:
        self.last = state.event
        self._counts, self._contents = state.counts, state.contents

    def labels(self) -> dict[str, int]:
        """Number of examples of each label, in order of first appearance."""
        return dict(self._counts)

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        """Empty, since there are no examples."""
        return iter(())

    def find_content(self, digest: int) -> tuple[int, str] | None:
        """The label of an image with these tokens; its id is not known here."""
        label = self._contents.find(digest)
        return None if label is None else (0, label)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __getattr__(self, name: str) -> Any:
        """Raises for methods that need the examples."""
        raise Problem(409, ELSEWHERE)

    def close(self) -> None:
        """Nothing to close."""


class _Answers(NamedTuple):
    """The part of a trainer that predictions need."""

    model: Model
    backbone: Backbone
    settings: Settings

    @property
    def learner(self) -> Learner:
        return self.model.learner

    def embed(self, labels: Sequence[str]) -> Tensor:
        """Label embeddings [label, dim]."""
        return self.backbone.embed_labels(labels, self.settings.templates)


class SnapshotClassifier(Predicting):
    """A classifier that predicts from a state exactly as the original one."""

    stats = AnytimeClassifier.stats

    def __init__(
        self, state: AnswerState, embed: EmbedLabels, cache: LabelCache | None = None
    ) -> None:
        spec = Spec.from_dict(state.spec)
        self.settings = Settings.from_json(state.settings)
        self.backbone = SharedBackbone(
            spec,
            _no_trunk,
            _tensors(state.tail),
            text=None,
            templates=state.templates,
            label_cache=cache or LabelCache(),
            prior=None if state.prior is None else Prior(**_tensors(state.prior)),
            shared={label: row for row, label in enumerate(state.counts)},
            vectors=torch.tensor(state.vectors),
            embed=embed,
        )
        self.event = state.event
        self.memory = cast("Any", SnapshotMemory(state))
        model = Model(spec, self.backbone.tail, self.settings, self.backbone.prior)
        model.restore(_with_moments(_tensors(state.arrays)), json.loads(json.dumps(state.model)))
        for label in [name for name in model.labels if name not in state.counts]:
            model.retire(label)  # forgotten since
        self._trainer = cast("Any", _Answers(model, self.backbone, self.settings))
        self._lock, self._streams = TurnLock(), DeviceStreams(self.backbone.device)
        self._last_asked = None

    def __len__(self) -> int:
        """Number of learned examples."""
        return len(self.memory)

    def __getattr__(self, name: str) -> Any:
        """Raises for methods that need the examples."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise Problem(409, ELSEWHERE)

    def close(self) -> None:
        """Nothing to close."""


def _with_moments(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With zero moments, for the checkpoint's format."""
    weights = {n.removeprefix("weights."): t for n, t in tensors.items() if n.startswith("weights")}
    nothing = {
        f"{moment}{name}": value.new_zeros(()).expand(value.shape)
        for moment in MOMENTS
        for name, value in weights.items()
    }
    return tensors | nothing
