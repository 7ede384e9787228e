"""Scores of a classifier's closed-form experts for unlabelled images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from anytimecl.choosing import Beliefs, believed, most_telling
from anytimecl.model import Model

if TYPE_CHECKING:
    from anytimecl.classifier import AnytimeClassifier


class Known(NamedTuple):
    """The closed-form experts, and the candidate labels."""

    model: Model
    names: list[str]
    text: Tensor  # [label, dim]

    @property
    def rows(self) -> list[int]:
        return [self.model.rows.get(name, -1) for name in self.names]

    def say(self, images: Tensor) -> Beliefs:
        model = self.model
        original = model.learner.named(images, self.text).log_softmax(1)
        return believed(model.gaussian, images, original, self.rows)

    def best(self, asked: Beliefs, chance: float) -> int:
        return most_telling(self.model.gaussian, asked, self.rows, chance)


@contextmanager
def knowing(clf: AnytimeClassifier, wanted: Sequence[str] = ()) -> Iterator[Known]:
    """Experts that do not change within the block, over the seen labels and `wanted`."""
    labels = clf.labels
    names = [*labels, *(label for label in wanted if label not in set(labels))]
    text = torch.empty(0, clf.backbone.spec.dim)
    if names:
        text = clf.backbone.embed_labels(names, clf.settings.templates)
    with torch.no_grad(), clf._lock.reading():
        yield Known(clf._trainer.model, names, text.float().cpu())
