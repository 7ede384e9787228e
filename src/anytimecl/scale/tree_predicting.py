"""The part of a tree that predicts: selects leaves and labels, and combines answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.errors import LabelError, ModelError, StoreError
from anytimecl.images import ImageSource, images_given, load_image
from anytimecl.labels import askable, clean_labels
from anytimecl.prediction import THRESHOLD, told
from anytimecl.scale import shortlist as shortlists
from anytimecl.scale.answers import TreePrediction, gathered, mixed, original_only
from anytimecl.scale.homes import LabelHomes
from anytimecl.scale.leaf import image_vectors
from anytimecl.scale.leaves import Leaves
from anytimecl.scale.pending import Silence
from anytimecl.scale.routes import Routes
from anytimecl.scale.shortlist import ManyLabels
from anytimecl.settings import Settings

CLOSED = "The tree is closed: open it again."
NEARNESS = 0.05  # distance at which a leaf's weight falls to 1/e
SLOWEST = 5e-5  # timeout in seconds per image and label, ten times the usual duration


class TreePredicting:
    """Predicts with the nearest leaves, while they learn."""

    backbone: Backbone
    settings: Settings
    routes: Routes
    leaves: Leaves
    near: int
    patience: float
    _silence: Silence
    _labels: LabelHomes
    _last_asked: tuple[tuple[str, ...], ManyLabels] | None
    _closed: bool

    @property
    def labels(self) -> list[str]:
        """Every seen label, in order of first appearance."""
        return self._labels.names()

    def encode(self, images: Sequence[ImageSource]) -> Tensor:
        """The frozen trunk's tokens [image, token, width]."""
        return self.backbone.encode([load_image(image) for image in images])

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = THRESHOLD
    ) -> Any:
        """A `TreePrediction` for one image, a list of them for a list."""
        given, many = images_given(images)
        tokens = self.encode(given)
        found = self.predict_tokens(tokens, labels, threshold=threshold)
        return found if many else found[0]

    def predict_tokens(
        self,
        tokens: Tensor,
        labels: Sequence[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        vectors: Tensor | None = None,
    ) -> list[TreePrediction]:
        """`predict` for tokens from `encode`.

        `vectors` [image, dim] are the images' embeddings (`image_vectors`), if known. With more
        than 4,096 labels, a prediction has only those that are among the best of some expert.
        """
        self._check_open()
        self._check_tokens(tokens)
        asked = self._asked(labels)
        vectors = image_vectors(self.backbone, tokens).cpu() if vectors is None else vectors
        while True:
            found = self._asked_leaves(tokens, vectors, asked, threshold)
            there = set(self.routes.leaves())
            if all(set(one.missing) <= there for one in found):
                return found  # else a leaf split meanwhile, and its children are asked

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(CLOSED)

    def _check_tokens(self, tokens: Tensor) -> None:
        shape = [self.backbone.spec.tokens, self.backbone.spec.tail.width]
        if list(tokens.shape)[1:] != shape:
            told = f"Tokens are a tensor [image, {shape[0]}, {shape[1]}], as `encode` gives them"
            raise ModelError(f"{told}, not {list(tokens.shape)}.")

    def _asked(self, labels: Iterable[str] | None) -> ManyLabels:
        """The candidate labels; the last list is cached, since a long one is often repeated."""
        if labels is None and not self.labels:
            raise LabelError("Nothing is learned yet: say which labels to choose from.")
        given = tuple(self.labels) if labels is None else labels
        if isinstance(given, list | tuple) and self._last_asked is not None:
            before, last = self._last_asked
            if before == tuple(given):
                return last
        asked = clean_labels(given) if labels is None else askable(given)
        made = ManyLabels.of(asked, self.backbone.embed_labels(asked, self.settings.templates))
        if isinstance(given, list | tuple):
            self._last_asked = tuple(given), made
        return made

    def _asked_leaves(
        self, tokens: Tensor, vectors: Tensor, asked: ManyLabels, threshold: float
    ) -> list[TreePrediction]:
        routes = self.routes
        near = [dict(routes.near(vector, self.near)) for vector in vectors]
        # Images with the same leaves are one request.
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for image, of_image in enumerate(near):
            groups[tuple(of_image)].append(image)
        todo = [(leaves, images, asked) for leaves, images in groups.items()]
        if len(asked.labels) > shortlists.ABOVE:
            todo = [
                (leaves, [image], short)
                for leaves, images in groups.items()
                for image, short in self._shortlisted(leaves, images, tokens, vectors, asked)
            ]
        waiting = [
            {
                leaf: self.leaves.ask(leaf, tokens[images], its.labels, its.vectors)
                for leaf in leaves
                if self._silence.may_ask(leaf)
            }
            for leaves, images, its in todo
        ]
        found: dict[int, TreePrediction] = {}
        for (leaves, images, its), sent in zip(todo, waiting, strict=True):
            answers = gathered(sent, self._patience(images, its))
            missing = tuple(leaf for leaf in leaves if leaf not in answers)
            self._silence.note(sent, answers)
            if answers:
                distances = torch.tensor([[near[i][leaf] for leaf in answers] for i in images])
                answer = mixed(list(answers.values()), (-distances / NEARNESS).softmax(1))
            else:
                answer = original_only(self.backbone, tokens[images], its.vectors)
            for image, one in zip(
                images, told(its.labels, *answer, answer[0].seen, threshold), strict=True
            ):
                found[image] = TreePrediction(**vars(one), leaves=tuple(answers), missing=missing)
        return [found[image] for image in range(len(tokens))]

    def _patience(self, images: Sequence[int], labels: ManyLabels) -> float:
        """Timeout of an answer in seconds, by its size."""
        return self.patience + SLOWEST * len(images) * len(labels.labels)

    def _shortlisted(
        self,
        leaves: tuple[int, ...],
        images: list[int],
        tokens: Tensor,
        vectors: Tensor,
        many: ManyLabels,
    ) -> Iterator[tuple[int, ManyLabels]]:
        """For each image, the labels shortlisted by one of its leaves or the original model."""
        sent = {
            leaf: self.leaves.shortlist(leaf, tokens[images], many)
            for leaf in leaves
            if self._silence.may_ask(leaf)
        }
        found = gathered(sent, self._patience(images, many))
        self._silence.note(sent, found)
        own = shortlists.named_by_original(vectors[images].to(many.vectors), many)
        for image, parts in zip(images, zip(own, *found.values(), strict=True), strict=True):
            places = sorted({place for part in parts for place in part})
            yield image, ManyLabels.of([many.labels[at] for at in places], many.vectors[places])
