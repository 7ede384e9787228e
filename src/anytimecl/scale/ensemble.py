"""An ensemble of models in one pool, which learn and predict together.

The first classifier contributes the original, the tuned and the Gaussian expert. Others are added
by name: a tuned DINOv2, or a user-defined scorer that does not learn here. Each is scored on
examples before it learns them, and `anytimecl.pool` fits the weights.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import PIL.Image
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from anytimecl.blend import POOL, Opinions
from anytimecl.classifier import AnytimeClassifier
from anytimecl.closing import Closing
from anytimecl.codec import ImageBytes
from anytimecl.errors import LabelError, ModelError, StoreError
from anytimecl.files import replacing
from anytimecl.images import ImageSource, images_given, load_image
from anytimecl.labels import clean_labels, teachable
from anytimecl.pool import RECENT, TINY, start_weights, weigh
from anytimecl.prediction import THRESHOLD, Prediction, predictions
from anytimecl.trainer import Learned

FILE = "ensemble.json"
FIRST = ""  # name of the first classifier
ORIGINAL, TUNED, GAUSSIAN = "original", "tuned", "gaussian"
SAVE_EVERY = 256  # examples: the evidence that a crash loses at most
EVERY = 16  # examples between two fits of the weights
ABSENT = -50.0  # log-score of a label that was not a candidate
ROUNDING = 0.01  # tolerance of the sum of an image's probabilities


class Scorer(Protocol):
    """A user-defined model, which does not learn here."""

    def __call__(self, images: Sequence[PIL.Image.Image], labels: Sequence[str], /) -> ArrayLike:
        """Probabilities [image, label], non-negative and with sum 1 for each image.

        Apply a softmax to logits or log-probabilities first.
        """
        ...


Member = AnytimeClassifier | Scorer


@dataclass(frozen=True)
class EnsemblePrediction(Prediction):
    """A prediction, with those of each model."""

    models: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)


class Ensemble(Closing):
    """A classifier and further members in one pool.

    Each further classifier adds two experts, its tuned model and its Gaussian expert; a scorer adds
    one. `folder` stores the pool's evidence; the classifiers store their own examples.
    """

    def __init__(
        self,
        first: AnytimeClassifier,
        others: Mapping[str, Member],
        *,
        folder: str | Path | None = None,
    ) -> None:
        if taken := {FIRST, ORIGINAL, TUNED, GAUSSIAN} & others.keys():
            raise ModelError(
                f"No member can be called {taken.pop()!r}, as the first classifier is, or an "
                "expert of the first classifier."
            )
        self.first, self.others = first, dict(others)
        # os.chdir must not change it
        self._file = None if folder is None else Path(folder).absolute() / FILE
        self._unsaved = 0
        self._evidence: deque[tuple[str, dict[str, dict[str, float]]]] = deque(maxlen=RECENT)
        self.weights: dict[str, float] = {}
        if self._file is not None and self._file.exists():
            try:
                kept = json.loads(self._file.read_text(encoding="utf-8"))
                self._evidence.extend((label, said) for label, said in kept.get("evidence", ()))
                self.weights = kept.get("weights", {})
            except (OSError, ValueError, AttributeError, TypeError) as error:
                raise StoreError(
                    f"{self._file} cannot be read ({error}). Without it the weights are fitted "
                    "again, as examples are learned: delete it, or restore a backup."
                ) from error

    def learn_one(self, image: ImageSource, label: str, *, key: str | None = None) -> Learned:
        """Score the image with every expert, then learn it with each classifier, once for a key."""
        label, key = teachable(label), key or uuid.uuid4().hex
        loaded = load_image(image)
        asked = list(dict.fromkeys([*self.first.labels, label]))
        tokens = self._encoded([loaded])
        opinions = self._opinions([loaded], tokens, asked).everyone()
        said = {n: dict(zip(asked, s[0].tolist(), strict=True)) for n, s in opinions.items()}
        last = self.first.memory.last
        learned = _taught(self.first, loaded, tokens[FIRST], label, key)
        for name, member in self.others.items():
            if isinstance(member, AnytimeClassifier):
                _taught(member, loaded, tokens[name], label, key)
        # An image that was learned before, whatever its key and label, is no evidence.
        if learned.id > last and learned.replaced is None:
            self._evidence.append((label, said))
            self._unsaved += 1
            if self._unsaved % EVERY == 0:
                self._weigh()
            if self._unsaved >= SAVE_EVERY:
                self.save()
        return learned

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = THRESHOLD
    ) -> Any:
        """An `EnsemblePrediction` for one image, a list of them for a list."""
        given, many = images_given(images)
        loaded = [load_image(image) for image in given]
        if labels is None and not self.first.labels:
            raise LabelError("Nothing is learned yet: say which labels to choose from.")
        asked = clean_labels(self.first.labels if labels is None else labels)
        opinions = self._opinions(loaded, self._encoded(loaded), asked)
        said = {name: score.softmax(1).tolist() for name, score in opinions.everyone().items()}
        found = [
            EnsemblePrediction(
                **vars(one),
                models={n: dict(zip(asked, p[i], strict=True)) for n, p in said.items()},
            )
            for i, one in enumerate(predictions(asked, opinions, POOL, threshold))
        ]
        return found if many else found[0]

    def save(self) -> None:
        """Store the pool's evidence."""
        self._unsaved = 0
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        known = {"evidence": list(self._evidence), "weights": self.weights}
        with replacing(self._file) as draft:
            draft.write_text(json.dumps(known), encoding="utf-8")

    def close(self) -> None:
        """Save, and close every classifier."""
        self.save()
        for member in (self.first, *self.others.values()):
            if isinstance(member, AnytimeClassifier):
                member.close()

    def _encoded(self, images: Sequence[PIL.Image.Image]) -> dict[str, Tensor]:
        """Tokens from every classifier's trunk."""
        members = {FIRST: self.first, **self.others}
        return {n: m.encode(images) for n, m in members.items() if isinstance(m, AnytimeClassifier)}

    def _opinions(
        self,
        images: Sequence[PIL.Image.Image],
        tokens: Mapping[str, Tensor],
        asked: Sequence[str],
    ) -> Opinions:
        """Scores of every expert."""
        opinions = self.first.opinions(tokens[FIRST], asked)
        scores = dict(opinions.scores)
        for name, member in self.others.items():
            if not isinstance(member, AnytimeClassifier):
                scores[name] = _scored(member, images, asked).clamp_min(TINY).log()
                continue
            its = member.opinions(tokens[name], asked)
            scores[name] = its.tuned.clamp_min(TINY).log()
            if GAUSSIAN in its.scores:
                scores[f"{name} {GAUSSIAN}"] = its.everyone()[GAUSSIAN]
        start = start_weights([ORIGINAL, TUNED, *scores])
        return dataclasses.replace(opinions, scores=scores, weights=start | self.weights)

    def _weigh(self) -> None:
        """Fit weights of the experts that scored the latest example, on the kept evidence."""
        told = [said for _, said in self._evidence]
        if not told:
            return
        labels = list(told[-1][ORIGINAL])
        silent = dict.fromkeys(labels, 0.0)  # before the expert had learned anything
        scores = {
            name: torch.tensor(
                [[said.get(name, silent).get(y, ABSENT) for y in labels] for said in told]
            )
            for name in told[-1]
        }
        target = [labels.index(label) if label in labels else -1 for label, _ in self._evidence]
        kept = [i for i, at in enumerate(target) if at >= 0]
        if kept:
            of_kept = {name: score[kept] for name, score in scores.items()}
            self.weights = weigh(of_kept, torch.tensor([target[i] for i in kept]))


def _taught(
    member: AnytimeClassifier, image: PIL.Image.Image, tokens: Tensor, label: str, key: str
) -> Learned:
    if member.settings.name_of("codec") == ImageBytes.name:
        return member.learn_one(image, label, key=key)
    return member.learn_tokens(tokens[0], label, key=key)


def _scored(member: Scorer, images: Sequence[PIL.Image.Image], labels: Sequence[str]) -> Tensor:
    """Probabilities [image, label] of a scorer."""
    values = torch.from_numpy(np.array(member(images, labels), np.float32))
    if values.shape != (len(images), len(labels)):
        raise ModelError(
            f"A scorer gives a probability for each of {len(images)} images and {len(labels)} "
            f"labels, and not the shape {tuple(values.shape)}."
        )
    off = (values.sum(1) - 1).abs()
    if not ((values >= 0).all() and (off <= ROUNDING).all()):  # also refuses NaN
        raise ModelError(
            "A scorer gives probabilities: none below zero, and those of an image add up to one. "
            f"This one gave {values.min():.3g} to {values.max():.3g}, and sums up to "
            f"{off.max():.3g} off. Logits and log-probabilities need a softmax first."
        )
    return values
