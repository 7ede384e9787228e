"""All that answers: the original and the tuned model, the experts, and the pool of them.

A model knows labels and image vectors; it knows nothing of images, storage or locks.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone.prior import Prior
from anytimecl.backbone.spec import Spec
from anytimecl.blend import BLENDS, Estimates, Opinions, unlearned
from anytimecl.errors import LabelError
from anytimecl.experts import GaussianExpert, InstanceExpert, OtherExperts
from anytimecl.experts.gaussian import last_step
from anytimecl.imprint import Imprint, left_out_cosines
from anytimecl.label_table import LabelTable
from anytimecl.learner import Learner
from anytimecl.pool import RECENT, Familiar, start_weights, weigh
from anytimecl.settings import Settings
from anytimecl.tail import Params, TailInput
from anytimecl.threads import one_thread

VECTORS = "vectors"  # of the labels, in a checkpoint
POOLED = ("tuned", "original", "gaussian")


class Evidence(NamedTuple):
    """An example as it was seen just before it was learned: evidence for the pool."""

    example: int
    label: str
    tuned: Tensor  # [dim], unit vector of the tuned model
    original: Tensor  # [dim], and of the original one


class Model:
    """Learner, estimates, experts, pool, and the labels they are about.

    Labels have a row each, in order of first appearance; all parts are kept in step here.
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
        self.others = OtherExperts(settings.other_experts, spec.dim, prior)
        self.weights = start_weights((*POOLED, *self.others.names), names=spec.names)
        self.familiar: Familiar | None = None
        self.evidence: deque[Evidence] = deque(maxlen=RECENT)
        self.table = LabelTable(torch.empty(0, spec.dim, device=self.learner.other.device))
        self.labels, self.rows = self.table.labels, self.table.rows  # the very same
        self._wants_experts = BLENDS.make(settings.blend).hears_experts

    @property
    def vectors(self) -> Tensor:
        """[row, dim], of the labels seen."""
        return self.table.vectors

    def enter(self, label: str, vector: Tensor) -> None:
        """A label is seen for the first time."""
        self.learner.make_room(self.table.enter(label, vector) + 1)
        self.gaussian.enter()
        self.others.enter()

    def retire(self, label: str) -> None:
        """A label was never seen: nothing keeps its text, or is told apart from it."""
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
        vectors: Tensor,  # [label, dim], of these names
        learner: Learner | None = None,  # as it stands still, where this one goes on learning
    ) -> Opinions:
        """What everyone says of a batch over these labels."""
        rows = torch.tensor([self.rows.get(name, -1) for name in names], device=vectors.device)
        chosen = learner or self.learner
        if not self.estimates.any_of(names):
            # Nothing learned may change such an answer, nor a label whose first is being learned.
            return unlearned(chosen.original_logits(tokens, vectors), self.spec.none_logit)
        images, tuned_images = chosen.both_images(tokens)
        original = chosen.named_by_original(images, vectors)
        tuned = chosen.named_by_tuned(tuned_images, vectors, rows)
        other = chosen.other_logit
        texts = self.by_text(tuned_images, vectors, names)
        return self.of_logits(tuned, original, other, images, names, texts)

    def by_text(self, tuned: Tensor, vectors: Tensor, names: Sequence[str]) -> Tensor | None:
        """Logits [image, label] of the tuned model's images beside texts, where some are unseen."""
        if self.imprint is None or all(name in self.rows for name in names):
            return None
        return self.spec.logit_scale * tuned @ vectors.T

    def check_taught(self, names: Sequence[str]) -> None:
        """An error for labels that nothing can be said of, since they are but codes."""
        unknown = [] if self.spec.names else [name for name in names if name not in self.rows]
        if unknown:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise LabelError(
                f"{self.spec.name} knows images only, so it can tell no label that it was not "
                f"taught: {', '.join(map(repr, unknown[:3]))}{more}. Teach an image of each, "
                "leave them out, or use a model with a text side."
            )

    def of_logits(
        self,
        tuned: Tensor,
        original: Tensor,
        other: Tensor,
        images: Tensor,
        names: Sequence[str],
        texts: Tensor | None = None,
    ) -> Opinions:
        """The same, from what both models have said [image, label] of `images` [image, dim].

        `texts`: `by_text`, if there is any.
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
        """As it is now, for whoever has weights of his own: `of_logits` alone may be asked."""
        found = copy.copy(self)
        found.gaussian = self.gaussian.answering()
        found.instances, found.rows = copy.copy(self.instances), dict(self.rows)
        found.others = self.others.answering()
        found.estimates = Estimates.restored(self.estimates.state())
        found.evidence, found.weights = deque(), dict(self.weights)
        del found.learner, found.table
        return found

    def advance(self, example: int) -> None:
        """Before an example is learned: now and then, what came before it is taken stock of."""
        if self.gaussian.advance(example):
            self._fit()

    def learned(self, seen: Evidence, *, tuned: bool, original: bool) -> None:
        """An example was learned, of which the models had been right or wrong."""
        row = self.rows[seen.label]
        self.estimates.add(seen.label, tuned=tuned, original=original)
        self.gaussian.add(seen.example, row, seen.original)
        if self.imprint is not None:
            self.imprinted([row])
        if self.others.experts:
            self.others.add([seen.example], [row], [seen.original])
        if not tuned:
            self.instances.add(seen.example, row, seen.original)
        self.evidence.append(seen)

    def learned_many(self, seen: Sequence[Evidence], right: Sequence[tuple[bool, bool]]) -> None:
        """The same for many, in order, as `advance` and `learned` one by one.

        `right` says of each whether the tuned, the original model had been right.
        """
        last = last_step(seen[-1].example)
        early = sum(one.example < last for one in seen)
        for start, end in ((0, early), (early, len(seen))):
            some = seen[start:end]
            if start == early:
                self.advance(last)
            if not some:
                continue
            rows = [self.rows[one.label] for one in some]
            self.gaussian.add_many(rows, torch.stack([one.original for one in some]))
            self.others.add([one.example for one in some], rows, [one.original for one in some])
            wrong = [i for i in range(len(some)) if not right[start + i][0]]
            if wrong:
                self.instances.add_many(
                    [some[i].example for i in wrong],
                    [rows[i] for i in wrong],
                    torch.stack([some[i].original for i in wrong]),
                )
            self.evidence.extend(some)
        self.imprinted(sorted({self.rows[one.label] for one in seen}))
        for one, (tuned, original) in zip(seen, right, strict=True):
            self.estimates.add(one.label, tuned=tuned, original=original)

    def imprinted(self, rows: Sequence[int]) -> None:
        """The tuned model compares images with what images of these labels look like now."""
        if self.imprint is not None:
            self.learner.imprint(rows, self.imprint.of(self.gaussian.now, rows))

    def remove(self, example: int, label: str, image: Tensor | None) -> None:
        """An example is taken back: the experts keep no trace of it.

        Without its image, statistics still have it, until they are counted again.
        """
        if image is not None:
            self.gaussian.remove(example, self.rows[label], image)
            self.imprinted([self.rows[label]])
            self.others.remove(example, self.rows[label], image)
        self.let_go([example])

    def move(self, example: int, before: str, label: str, image: Tensor | None) -> bool:
        """An example has another label; whether it is among the instances.

        What was seen of it before it was first learned is evidence still, for its label now.
        """
        if image is not None:
            self.gaussian.remove(example, self.rows[before], image)
            self.others.remove(example, self.rows[before], image)
            self.gaussian.add(example, self.rows[label], image)
            self.imprinted([self.rows[before], self.rows[label]])
            self.others.add([example], [self.rows[label]], [image])
        self._retell(lambda seen: seen.example == example, label)
        return self.instances.move(example, self.rows[label])

    def rename(self, label: str, to: str, vector: Tensor) -> None:
        """A label is called otherwise: the same images, compared with another text."""
        self.table.rename(label, to, vector)
        self.estimates.rename(label, to)
        self._retell(lambda seen: seen.label == label, to)

    def _retell(self, about: Callable[[Evidence], bool], label: str) -> None:
        told = (seen._replace(label=label) if about(seen) else seen for seen in self.evidence)
        self.evidence = deque(told, maxlen=RECENT)

    def let_go(self, examples: Collection[int]) -> None:
        """Nothing but statistics may still have these examples."""
        gone = set(examples)
        self.instances.remove(gone)
        kept = [seen for seen in self.evidence if seen.example not in gone]
        if len(kept) < len(self.evidence):
            self.evidence = deque(kept, maxlen=RECENT)

    @property
    def kept(self) -> set[int]:
        """Examples that there is more of than statistics."""
        return {seen.example for seen in self.evidence} | set(self.instances.examples)

    def count(self, examples: Sequence[int], labels: Sequence[str], images: Tensor) -> None:
        """Statistics of these examples, in order, and of no others."""
        rows = [self.rows[label] for label in labels]
        self.gaussian.count(examples, rows, images, len(self.labels))
        self.imprinted(range(len(self.labels)))
        self.others.count(examples, rows, images, len(self.labels))

    def evidence_scores(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """What each expert said [example, label] of the latest examples, and the true labels.

        Each as by somebody who had not learned the example, over the labels that have one. Last,
        what is typical of these [example, label]: 0 where the Gaussian expert is silent.
        """
        counts = self.gaussian.now.counts.tolist()
        seen_rows = [row for row, count in enumerate(counts) if count]  # a stream enters all ahead
        place = {row: at for at, row in enumerate(seen_rows)}
        found = [seen for seen in self.evidence if self.rows.get(seen.label, -1) in place]
        found = found[-RECENT:]
        target = [self.rows[seen.label] for seen in found]
        numbers = [seen.example for seen in found]
        empty = [torch.empty(0, self.spec.dim)]
        tuned, original = (
            torch.cat(empty + [getattr(seen, name).unsqueeze(0) for seen in found])
            for name in ("tuned", "original")
        )
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

    @one_thread()  # sums over many examples
    def _fit(self, without: Sequence[str] = ()) -> None:
        """What the latest examples say of the pool; no weight for experts left out of it."""
        if not self.evidence:
            return  # all of it was forgotten
        scores, target, typical = self.evidence_scores()
        heard = {name: score for name, score in scores.items() if name not in without}
        self.weights = dict.fromkeys(without, 0.0) | weigh(heard, target, names=self.spec.names)
        self.familiar = self._familiar(scores["gaussian"] + typical / 2, target, typical.any(1))

    def _familiar(self, above: Tensor, target: Tensor, heard: Tensor) -> Familiar:
        """From scores of examples that were left out, halfway to what is typical of each label.

        [example, label]; nothing was said, not `heard`, of the only example of a label.
        """
        others = above[heard].scatter(1, target[heard].unsqueeze(1), -torch.inf).amax(1)
        others = others[others.isfinite()]  # none of them, if there is one label alone
        typical = float(self.gaussian.typical().mean())
        return Familiar.measured(above[heard].amax(1), others, typical)

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: what is large."""
        dim = self.spec.dim
        kept = {
            f"evidence.{name}": torch.stack(
                [getattr(seen, name) for seen in self.evidence] or [torch.empty(0)]
            ).reshape(-1, dim)
            for name in ("tuned", "original")
        }
        experts = self.gaussian.state() | self.instances.state() | self.others.state()
        return self.learner.state() | {VECTORS: self.vectors} | experts | kept

    def plain(self) -> dict[str, Any]:
        """And what is small, as JSON values."""
        return {
            "labels": list(self.labels),
            "estimates": self.estimates.state(),
            "weights": dict(self.weights),
            "familiar": self.familiar,
            "experts": self.others.names,
            "evidence": [[seen.example, seen.label] for seen in self.evidence],
        }

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> bool:
        """Back from both. False: they are of a version without experts, which know nothing yet."""
        for label, vector in zip(plain["labels"], tensors[VECTORS], strict=True):
            self.enter(label, vector)
        self.estimates = Estimates.restored(plain["estimates"])

        def part(prefix: str) -> dict[str, Tensor]:
            return {name: t for name, t in tensors.items() if name.startswith(prefix)}

        own = ("weights.", "first.", "second.", "steps")
        self.learner.restore({name: t for name, t in tensors.items() if name.startswith(own)})
        self.weights |= plain.get("weights", {})
        if plain.get("familiar"):
            self.familiar = Familiar(*plain["familiar"])
        if not part("gaussian."):
            return False
        self.gaussian.restore(part("gaussian."))
        self.imprinted(range(len(self.labels)))
        self.instances.restore(part("instance."))
        pairs = zip(tensors["evidence.tuned"], tensors["evidence.original"], strict=True)
        for (example, label), (tuned, original) in zip(plain["evidence"], pairs, strict=True):
            self.evidence.append(Evidence(example, label, tuned, original))
        return self.others.restore(part("expert."), plain.get("experts", ()))
