"""The model: the original and the tuned model, the other experts, and the state of the pool.

It works on labels and image embeddings; it knows nothing of image files, storage or locks.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone.prior import Prior
from anytimecl.backbone.spec import Spec
from anytimecl.blend import BLENDS, Estimates, Opinions, unlearned
from anytimecl.evidence import Evidence, Latest
from anytimecl.experts import GaussianExpert, InstanceExpert, OtherExperts
from anytimecl.experts.gaussian import last_step
from anytimecl.imprint import Imprint, left_out_cosines
from anytimecl.label_table import LabelTable
from anytimecl.learner import Learner
from anytimecl.pool import Familiar, start_weights, weigh
from anytimecl.settings import Settings
from anytimecl.tail import Params, TailInput
from anytimecl.threads import one_thread

VECTORS = "vectors"  # label embeddings, in a checkpoint
POOLED = ("tuned", "original", "gaussian")


class Model:
    """Learner, running accuracies, experts and pool weights, over the same labels.

    Labels have a row each, in order of first appearance; updates here reach every part.
    """

    def __init__(
        self,
        spec: Spec,
        tail: Params,
        settings: Settings,
        prior: Prior | None = None,
        learner: Learner | None = None,
    ) -> None:
        self.spec = spec
        self.learner = learner or OnlineLearner(spec, tail, settings.learner)
        self.estimates = Estimates(settings.eta)
        self.gaussian = GaussianExpert(spec.dim, prior)
        self.instances = InstanceExpert(spec.dim, prior)
        self.imprint = Imprint.of_settings(settings.learner, prior)
        self.others = OtherExperts(partial(settings.other_experts, spec.dim, prior))
        self.weights = start_weights((*POOLED, *self.others.experts), names=spec.names)
        self.familiar: Familiar | None = None
        self.evidence = Latest()
        self.table = LabelTable(torch.empty(0, spec.dim, device=self.learner.other.device))
        self.labels, self.rows = self.table.labels, self.table.rows  # the same objects
        self._wants_experts = BLENDS.make(settings.blend).hears_experts

    @property
    def vectors(self) -> Tensor:
        """Text embeddings of the seen labels, [row, dim]."""
        return self.table.vectors

    def enter(self, label: str, vector: Tensor) -> None:
        """Add a label to every part."""
        self.learner.make_room(self.table.enter(label, vector) + 1)
        self.gaussian.enter()
        self.others.enter()

    def retire(self, label: str) -> None:
        """Remove a label from every part: it is unseen again."""
        row = self.table.retire(label)
        self.estimates.forget(label)
        self.learner.drop_row(row)
        self.gaussian.drop(row)
        self.others.drop(row)
        self.instances.drop(row)

    @torch.no_grad()
    def opinions(
        self,
        tokens: Tensor | TailInput,
        names: Sequence[str],
        vectors: Tensor,  # [label, dim], their embeddings
        learner: Learner | None = None,  # a snapshot to predict with while this one learns
    ) -> Opinions:
        """Scores of every expert for a batch of images over these labels."""
        rows = torch.tensor([self.rows.get(name, -1) for name in names], device=vectors.device)
        chosen = learner or self.learner
        if not self.estimates.any_of(names):
            # All unseen: the original model's probabilities, bit for bit, whatever was learned.
            return unlearned(chosen.original_logits(tokens, vectors), self.spec.none_logit)
        images, tuned_images = chosen.both_images(tokens)
        original = chosen.named_by_original(images, vectors)
        tuned = chosen.named_by_tuned(tuned_images, vectors, rows)
        other = chosen.other_logit
        texts = self.by_text(tuned_images, vectors, names)
        return self.of_logits(tuned, original, other, images, names, texts)

    def by_text(self, tuned: Tensor, vectors: Tensor, names: Sequence[str]) -> Tensor | None:
        """Logits [image, label] of tuned embeddings with texts alone, if any label is unseen.

        None if label vectors are not imprinted.
        """
        if self.imprint is None or all(name in self.rows for name in names):
            return None
        return self.spec.logit_scale * tuned @ vectors.T

    def of_logits(
        self,
        tuned: Tensor,
        original: Tensor,
        other: Tensor,
        images: Tensor,
        names: Sequence[str],
        texts: Tensor | None = None,
    ) -> Opinions:
        """The same from both models' logits [image, label] and the original embeddings `images`.

        `images` [image, dim] are of unit length; `texts` is the result of `by_text`.
        """
        said: dict[str, Any] = {}
        if self._wants_experts:
            rows = [self.rows.get(name, -1) for name in names]
            seen, device = images.float().cpu(), tuned.device
            scores, typical = self.gaussian.judged(seen, rows)
            copy, copy_of = self.instances.nearest(seen, rows)
            everyone = {"gaussian": scores.to(device)}
            if self.others.experts:
                everyone |= self.others.scores(seen, rows, device)
            said = {
                "scores": everyone,
                "weights": self.weights,
                "typical": typical.to(device),
                "by_text": None if texts is None else texts.softmax(1),
                "familiar": self.familiar,
                "copy": copy.to(device),
                "copy_of": copy_of.to(device),
            }
        return Opinions.of(tuned, original, other, self.estimates.of_each(names), **said)

    def answering(self) -> Model:
        """A snapshot without the learner, for callers that have their own: only for `of_logits`."""
        found = copy.copy(self)
        found.gaussian = self.gaussian.answering()
        found.instances, found.rows = copy.copy(self.instances), dict(self.rows)
        found.others = self.others.answering()
        found.estimates = Estimates.restored(self.estimates.state())
        found.evidence, found.weights = Latest(), dict(self.weights)
        del found.learner, found.table
        return found

    def advance(self, example: int) -> None:
        """Before an example is learned: at certain steps, refit space and pool weights."""
        if self.gaussian.advance(example):
            self._fit()

    def learned(self, seen: Evidence, *, tuned: bool, original: bool) -> None:
        """Add a learned example; `tuned` and `original`: whether each model had been right."""
        self.advance(seen.example)
        row = self.rows[seen.label]
        self.gaussian.add(seen.example, row, seen.original)
        if self.others.experts:
            self.others.add([seen.example], [row], [seen.original])
        self._imprint([row])
        if not tuned:
            self.instances.add([seen.example], [row], seen.original[None])
        self.evidence.append(seen)
        self.estimates.add(seen.label, tuned=tuned, original=original)

    def learned_many(self, seen: Sequence[Evidence], right: Sequence[tuple[bool, bool]]) -> None:
        """Call `learned` for many, in order: the same result in less time.

        `right` holds for each whether the tuned and the original model were right.
        """
        last = last_step(seen[-1].example)
        early = sum(one.example < last for one in seen)
        for start, end in ((0, early), (early, len(seen))):
            some = seen[start:end]
            if start == early:
                self.advance(last)
            if not some:
                continue
            ids, rows = [one.example for one in some], [self.rows[one.label] for one in some]
            images = torch.stack([one.original for one in some])
            self.gaussian.add_many(rows, images)
            self.others.add(ids, rows, list(images))
            wrong = [i for i, (tuned, _) in enumerate(right[start:end]) if not tuned]
            self.instances.add([ids[i] for i in wrong], [rows[i] for i in wrong], images[wrong])
            self.evidence.extend(some)
        self._imprint(sorted({self.rows[one.label] for one in seen}))
        for one, (tuned, original) in zip(seen, right, strict=True):
            self.estimates.add(one.label, tuned=tuned, original=original)

    def _imprint(self, rows: Sequence[int]) -> None:
        """Update the imprinted vectors of these labels."""
        if self.imprint is not None:
            shifts, now = self.learner.shifts, self.gaussian.now
            self.learner.shifts = self.imprint.into(shifts, now, rows)

    def remove(self, example: int, label: str, image: Tensor | None) -> None:
        """Remove an example from the experts, exactly.

        Without its image embedding it stays in the statistics until they are recomputed (`count`).
        """
        if image is not None:
            self.gaussian.remove(example, self.rows[label], image)
            self._imprint([self.rows[label]])
            self.others.remove(example, self.rows[label], image)
        self.let_go([example])

    def move(self, example: int, before: str, label: str, image: Tensor | None) -> bool:
        """Relabel an example; returns whether the instance expert keeps it.

        Its evidence, from before it was first learned, stays, with the new label.
        """
        if image is not None:
            self.gaussian.remove(example, self.rows[before], image)
            self.others.remove(example, self.rows[before], image)
            self.gaussian.add(example, self.rows[label], image)
            self._imprint([self.rows[before], self.rows[label]])
            self.others.add([example], [self.rows[label]], [image])
        self.evidence.relabel(lambda seen: seen.example == example, label)
        return self.instances.move(example, self.rows[label])

    def rename(self, label: str, to: str, vector: Tensor) -> None:
        """Rename a label: the same images, another text embedding."""
        self.table.rename(label, to, vector)
        self.estimates.rename(label, to)
        self.evidence.relabel(lambda seen: seen.label == label, to)

    def let_go(self, examples: Collection[int]) -> None:
        """Remove examples from everything except the statistics."""
        gone = set(examples)
        self.instances.remove(gone)
        self.evidence.drop(gone)

    @property
    def kept(self) -> set[int]:
        """Examples of which individual embeddings are kept."""
        return {seen.example for seen in self.evidence} | set(self.instances.examples)

    def count(self, examples: Sequence[int], labels: Sequence[str], images: Tensor) -> None:
        """Recompute the statistics from these examples, in order, and no others."""
        rows = [self.rows[label] for label in labels]
        self.gaussian.count(examples, rows, images, len(self.labels))
        self._imprint(range(len(self.labels)))
        self.others.count(examples, rows, images, len(self.labels))

    def evidence_scores(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Scores [example, label] by expert of the latest examples, each as if not learned.

        Over the seen labels. Also the true labels [example], and the expected Gaussian scores
        [example, label], 0 for the only example of a label.
        """
        counts = self.gaussian.now.counts.tolist()
        seen_rows = [row for row, count in enumerate(counts) if count]  # a stream adds labels ahead
        place = {row: at for at, row in enumerate(seen_rows)}
        found = Latest(one for one in self.evidence if self.rows.get(one.label, -1) in place)
        target = [self.rows[seen.label] for seen in found]
        numbers = [seen.example for seen in found]
        tuned, original = found.tensors(self.spec.dim).values()
        vectors = self.vectors.float().cpu()[seen_rows]
        at = torch.tensor([place[row] for row in target], dtype=torch.long)
        ratios, typical = self.gaussian.judged_left_out(original, target, numbers)
        scores = {
            "tuned": self.learner.named(tuned, vectors).log_softmax(1),
            "original": self.learner.named_by_original(original, vectors).log_softmax(1),
            "gaussian": (ratios - typical)[:, seen_rows],
        }
        if self.imprint is not None and found:
            shifts = self.imprint.of(self.gaussian.now, seen_rows)
            left = self.imprint.left_out(self.gaussian.now, target, original)
            cosines = left_out_cosines(tuned, vectors, shifts, at, left)
            scores["tuned"] = (self.spec.logit_scale * cosines).log_softmax(1)
        for name, score in self.others.left_out(original, target, numbers).items():
            scores[name] = score[:, seen_rows]
        return scores, at, typical[:, seen_rows]

    @one_thread()  # sums over many examples round differently with more threads
    def _fit(self, without: Sequence[str] = ()) -> None:
        """Fit the pool weights on the latest examples; experts in `without` get weight 0."""
        if not self.evidence:
            return  # all examples were forgotten
        scores, target, typical = self.evidence_scores()
        heard = {name: score for name, score in scores.items() if name not in without}
        self.weights = dict.fromkeys(without, 0.0) | weigh(heard, target, names=self.spec.names)
        self.familiar = self._familiar(scores["gaussian"] + typical / 2, target, typical.any(1))

    def _familiar(self, above: Tensor, target: Tensor, heard: Tensor) -> Familiar:
        """Fit `Familiar` to leave-one-out scores G - T / 2 [example, label].

        Examples that are the only one of their label have no score and are left out by `heard`.
        """
        others = above[heard].scatter(1, target[heard].unsqueeze(1), -torch.inf).amax(1)
        others = others[others.isfinite()]  # empty if there is only one label
        typical = float(self.gaussian.typical().mean())
        return Familiar.measured(above[heard].amax(1), others, typical)

    def tensors(self) -> dict[str, Tensor]:
        """State for a checkpoint, as tensors."""
        experts = self.gaussian.state() | self.instances.state() | self.others.state()
        return (
            self.learner.state()
            | {VECTORS: self.vectors}
            | experts
            | self.evidence.tensors(self.spec.dim)
        )

    def plain(self) -> dict[str, Any]:
        """The rest of the state, as JSON values."""
        return {
            "labels": list(self.labels),
            "estimates": self.estimates.state(),
            "weights": dict(self.weights),
            "familiar": self.familiar,
            "experts": list(self.others.experts),
            "evidence": self.evidence.plain(),
        }

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> bool:
        """Restore both. False if statistics of an expert are missing and must be recomputed."""
        for label, vector in zip(plain["labels"], tensors[VECTORS], strict=True):
            self.enter(label, vector)
        self.estimates = Estimates.restored(plain["estimates"])

        def part(*prefixes: str) -> dict[str, Tensor]:
            return {name: t for name, t in tensors.items() if name.startswith(prefixes)}

        self.learner.restore(part("weights.", "first.", "second.", "steps"))
        self.weights |= plain.get("weights", {})
        if plain.get("familiar"):
            self.familiar = Familiar(*plain["familiar"])
        if not part("gaussian."):
            return False
        self.gaussian.restore(part("gaussian."))
        self._imprint(range(len(self.labels)))
        self.instances.restore(part("instance."))
        self.evidence.restore(tensors, plain["evidence"])
        return self.others.restore(part("expert."), plain.get("experts", ()))
