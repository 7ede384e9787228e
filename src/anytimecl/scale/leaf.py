"""One leaf of a tree: a classifier of its own that speaks in records, and can become two."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl import checkpoint as checkpoints
from anytimecl.backbone import Backbone
from anytimecl.blend import Opinions, blend, weights
from anytimecl.checkpoint import Checkpoint
from anytimecl.classifier import AnytimeClassifier, _Asked
from anytimecl.keeper import CHECKPOINT
from anytimecl.memory import open_memory
from anytimecl.recall import SUMS, Recall
from anytimecl.sampling import SAMPLERS
from anytimecl.scale.routes import two_means
from anytimecl.student import VECTORS, Learned
from anytimecl.tail import Seen, embed

CHUNK = 256  # examples that are looked at in one go
CLASSIFIER = ("weights.classifier", "first.classifier", "second.classifier")


class Lesson(NamedTuple):
    """An example on its way to a leaf."""

    record: bytes  # of the codec
    label: str
    candidates: tuple[str, ...] | None = None
    key: str | None = None


class Answer(NamedTuple):
    """What a leaf says of a batch of images."""

    opinions: Opinions
    alpha: Tensor  # weight of the tuned model
    values: Tensor  # [image, label], blended

    @classmethod
    def of(cls, opinions: Opinions, name: str) -> Answer:
        """By a blend; votes are heard now, and need not travel."""
        values = blend(name, opinions)
        opinions = dataclasses.replace(opinions, votes=None)
        return cls(opinions, weights(name, opinions), values)


def image_vectors(backbone: Backbone, tokens: Tensor | Seen) -> Tensor:
    """Unit vectors [image, dim] of the original model, by which images find their leaf."""
    with torch.no_grad():
        return F.normalize(embed(backbone.tail, backbone.spec.tail, tokens), dim=-1)


class Leaf(AnytimeClassifier):
    """A classifier over its own share of the examples."""

    def learn_record(self, lesson: Lesson) -> Learned:
        """`learn_one` for an image that was encoded elsewhere; the record was checked there."""
        return self._learn(lesson.record, lesson.label, lesson.candidates, lesson.key)

    def answer(self, tokens: Tensor, labels: Sequence[str], vectors: Tensor) -> Answer:
        """What this leaf says of images [image, token, width] over labels [label, dim]."""
        opinions = self._opinions(tokens, _Asked(tuple(labels), list(labels), vectors))
        return Answer.of(opinions, self.settings.blend)

    def known_labels(self) -> list[str]:
        """Every label with an example here."""
        return self.labels

    def forget_label(self, label: str) -> int:
        """Remove every example of a label, for good."""
        return int(self.forget(label=label))

    def vectors(self) -> tuple[list[int], Tensor]:
        """Every example that can be read, and its vector [example, dim]."""
        return self._student.images([example for example, _ in self.memory.ids()])

    def divide(self, folders: tuple[Path, Path]) -> Tensor | None:
        """Make two leaves of this one, each with the half of the examples nearer to its centre.

        Gives their centres [2, dim]; None, and nothing is made, where all examples are alike. This
        leaf stays as it is, for whoever asks it meanwhile.
        """
        with self._learning:
            self._catch_up()
            ids, vectors = self.vectors()
            halves = two_means(vectors) if len(ids) > 1 else None
            if halves is None:
                return None
            saved = self._student.checkpoint()
            for part, folder in enumerate(folders):
                own = (halves.side == part).nonzero().flatten().tolist()
                self._found(folder, [ids[i] for i in own], vectors[own], saved)
            return halves.centres

    def _found(self, folder: Path, ids: Sequence[int], vectors: Tensor, saved: Checkpoint) -> None:
        """A leaf with some of the examples, starting from the weights of this one.

        It has the evidence of this one, but recalls its own examples alone.
        """
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was cut short
        with open_memory(folder, create=dict(self.memory.meta)) as memory:
            sampler = SAMPLERS[self.settings.sampler]()
            named: list[str] = []
            for start in range(0, len(ids), CHUNK):
                rows = [row for _, row in self.memory.rows(ids[start : start + CHUNK])]
                for example, row in zip(memory.append_many(rows), rows, strict=True):
                    sampler.add(example, row.label)
                    named.append(row.label)
            labels = list(memory.labels())
            state = {**saved.state, "labels": labels, "sampler": sampler.state()}
            estimates = saved.state["estimates"]
            known = {name: e for name, e in estimates["labels"].items() if name in labels}
            state["estimates"] = {**estimates, "labels": known}
            rows_kept = torch.tensor([saved.state["labels"].index(name) for name in labels])
            tensors = {
                name: value[rows_kept] if name in (VECTORS, *CLASSIFIER) else value
                for name, value in saved.tensors.items()
            }
            if SUMS in tensors:
                recall = Recall(vectors.shape[1])
                recall.make_room(len(labels))
                recall.add([labels.index(label) for label in named], vectors)
                tensors |= recall.state()
            child = dataclasses.replace(saved, event=memory.last, tensors=tensors, state=state)
            checkpoints.save(child, folder / CHECKPOINT)
