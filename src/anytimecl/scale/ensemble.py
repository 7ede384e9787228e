"""Several models that learn and answer together: CLIP as it was, CLIP tuned, and any others.

The first classifier brings the original and the tuned model. Others join by name: a tuned DINOv2,
or a scorer of the user's own that learns nothing here. All of them speak in probabilities. Each is
judged, label by label, on examples that it has not learned yet, and the blend of
`anytimecl.scale.blend` weighs them by that.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import PIL.Image
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from anytimecl.classifier import AnytimeClassifier
from anytimecl.closing import Closing
from anytimecl.errors import LabelError, ModelError
from anytimecl.images import ImageSource, load_image
from anytimecl.labels import clean_label, clean_labels
from anytimecl.prediction import NONE_OF_THESE, Prediction
from anytimecl.scale.blend import BLENDS, Estimates, Panel, blend, softness
from anytimecl.student import Learned

FILE = "ensemble.json"
ORIGINAL, TUNED = "original", "tuned"
SAVE_EVERY = 256  # examples: what the estimates lose at most to a crash
ROUNDING = 0.01  # that the probabilities of an image may be off one in sum


class Scorer(Protocol):
    """A model of the user's own, which learns nothing here."""

    def __call__(self, images: Sequence[PIL.Image.Image], labels: Sequence[str], /) -> ArrayLike:
        """Probabilities [image, label]: none below zero, and those of an image add up to one.

        Scores of another kind (logits, log-probabilities) go through a softmax first.
        """
        ...


Member = AnytimeClassifier | Scorer


@dataclass(frozen=True)
class EnsemblePrediction(Prediction):
    """A prediction, and what each model said."""

    models: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)


class Ensemble(Closing):
    """A classifier, and others beside it.

    `folder` keeps what is known of each model; the classifiers keep their own examples.
    """

    def __init__(
        self,
        first: AnytimeClassifier,
        others: Mapping[str, Member],
        *,
        folder: str | Path | None = None,
        blend: str = "gated",
    ) -> None:
        if blend not in BLENDS:
            raise ModelError(f"There is no blend {blend!r}. There are: {', '.join(BLENDS)}.")
        if {ORIGINAL, TUNED} & others.keys():
            raise ModelError(f"{ORIGINAL!r} and {TUNED!r} are names of the first classifier.")
        self.first, self.others, self.blend = first, dict(others), blend
        self._file = None if folder is None else Path(folder) / FILE
        self._unsaved = 0
        models = (ORIGINAL, TUNED, *others)
        self.estimates = Estimates(models, first.settings.eta)
        if self._file is not None and self._file.exists():
            state = json.loads(self._file.read_text(encoding="utf-8"))
            self.estimates = Estimates.restored(state, models)

    def learn_one(self, image: ImageSource, label: str, *, key: str | None = None) -> Learned:
        """Score the image with every model, then let each learn it. The same key teaches once."""
        label, key = clean_label(label), key or uuid.uuid4().hex
        loaded = load_image(image)
        known = self.first.memory.has_key(key) is not None
        asked = list(dict.fromkeys([*self.first.labels, label]))
        right = {
            name: asked[int(_scored(member, [loaded], asked)[0].argmax())] == label
            for name, member in self.others.items()
            if not isinstance(member, AnytimeClassifier)
        }
        learned = self.first.learn_one(loaded, label, key=key)
        right |= {ORIGINAL: learned.original, TUNED: learned.tuned}
        for name, member in self.others.items():
            if isinstance(member, AnytimeClassifier):
                right[name] = member.learn_one(loaded, label, key=key).tuned
        if not known:  # of a repeated one nothing is known from before it was learned
            self.estimates.add(label, right)
            self._unsaved += 1
            if self._unsaved >= SAVE_EVERY:
                self.save()
        return learned

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = 1.0
    ) -> Any:
        """An `EnsemblePrediction` for one image, a list of them for a list."""
        many = isinstance(images, list | tuple)
        loaded = [load_image(image) for image in (images if many else [images])]
        if labels is None and not self.first.labels:
            raise LabelError("Nothing is learned yet: say which labels to choose from.")
        asked = clean_labels(self.first.labels if labels is None else labels)
        firsts: list[Prediction] = self.first.predict(loaded, asked)
        said = {
            ORIGINAL: _tensor([one.original for one in firsts]),
            TUNED: _tensor([one.tuned or one.original for one in firsts]),
        }
        said |= {name: _scored(member, loaded, asked) for name, member in self.others.items()}
        marks = [self.estimates.of(name) for name in asked]
        scale = self.first.settings.learner.scale
        soft = softness(self.first.backbone.spec.logit_scale, scale)
        panel = Panel(list(said.values()), marks, self.estimates.overall, soft)
        values = blend(self.blend, panel)
        found = [
            _prediction(i, asked, said, values[i].tolist(), one, threshold)
            for i, one in enumerate(firsts)
        ]
        return found if many else found[0]

    def save(self) -> None:
        """Write down what is known of each model."""
        self._unsaved = 0
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_name(f".{FILE}-new")
        draft.write_text(json.dumps(self.estimates.state()), encoding="utf-8")
        os.replace(draft, self._file)

    def close(self) -> None:
        """Save, and close every classifier."""
        self.save()
        for member in (self.first, *self.others.values()):
            if isinstance(member, AnytimeClassifier):
                member.close()


def _scored(member: Member, images: Sequence[PIL.Image.Image], labels: Sequence[str]) -> Tensor:
    """Probabilities [image, label] of a member alone."""
    if isinstance(member, AnytimeClassifier):
        found: list[Prediction] = member.predict(list(images), labels)
        return _tensor([one.tuned or one.original for one in found])
    values = torch.from_numpy(np.array(member(images, labels), np.float32))
    if values.shape != (len(images), len(labels)):
        raise ModelError(
            f"A scorer gives a probability for each of {len(images)} images and {len(labels)} "
            f"labels, and not the shape {tuple(values.shape)}."
        )
    off = (values.sum(1) - 1).abs()
    if not ((values >= 0).all() and (off <= ROUNDING).all()):  # nor is any of them no number
        raise ModelError(
            "A scorer gives probabilities: none below zero, and those of an image add up to one. "
            f"This one gave {values.min():.3g} to {values.max():.3g}, and sums up to "
            f"{off.max():.3g} off. Logits and log-probabilities need a softmax first."
        )
    return values


def _tensor(rows: Sequence[Mapping[str, float]]) -> Tensor:
    return torch.tensor([list(row.values()) for row in rows])


def _prediction(
    image: int,
    asked: Sequence[str],
    said: Mapping[str, Tensor],
    values: Sequence[float],
    first: Prediction,
    threshold: float,
) -> EnsemblePrediction:
    best = max(range(len(asked)), key=values.__getitem__)
    none_wins = first.none_of_these > threshold
    models = {
        name: dict(zip(asked, opinion[image].tolist(), strict=True))
        for name, opinion in said.items()
    }
    return EnsemblePrediction(
        label=NONE_OF_THESE if none_wins else asked[best],
        probability=first.none_of_these if none_wins else values[best],
        probabilities=dict(zip(asked, values, strict=True)),
        none_of_these=first.none_of_these,
        tuned=first.tuned,
        original=first.original,
        spoke=first.spoke,
        models=models,
    )
