"""A trainer that replays the memory's journal: on one machine, to the same state bit for bit.

The state depends on the backbone, the settings and the journal alone. (One exception: embeddings of
unseen candidates may have been computed in a batch, which rounds differently.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.checkpoint import Checkpoint
from anytimecl.consolidation import CHUNK, OfflineTrainer
from anytimecl.errors import CheckpointError, StoreError
from anytimecl.memory.acts import MERGE, RENAME, WITHDRAW, Act, LabelHistory
from anytimecl.memory.contract import Event, Progress
from anytimecl.trainer import Learned


class JournaledTrainer(OfflineTrainer):
    """Replays learning, corrections and forgetting in order, from the start or a checkpoint."""

    def replay(
        self,
        progress: Progress | None = None,
        taken: Mapping[int, Tensor] | None = None,
        *,
        corrected: bool = False,
    ) -> int:
        """Replay the journal after `event`; returns the number of entries.

        `taken` are image embeddings of examples that were just forgotten. With `corrected`, every
        example is learned with its current label, as if it had been right from the start.
        """
        count, began = 0, self.event
        past = LabelHistory() if corrected else self.memory.history(self.event)
        for event in self.memory.events(self.event):
            if event.kind == "learn":
                self._repeat(int(event.data["example"]), past)
            elif event.number in past.acts:
                self.correct(past.acts[event.number])
            elif event.kind == "consolidate":
                self.consolidate(_epochs(event), event.number)
            elif event.kind == "forget":
                self.forget(event.data["examples"], taken)
            elif event.kind == "evict":
                self.forget([event.data["example"]], taken)
            self.event = event.number
            count += 1
            if progress is not None:
                progress(count, len(self.memory))
        if not began and past.acts:
            self._agree()
        if self._miscounted:
            self.recount()
        return count

    def _agree(self) -> None:
        """Relabel examples whose correction is no longer in the journal, from the memory."""
        wrong: dict[str, list[int]] = {}
        for example, label in self.memory.ids():
            if self.label_of(example) not in ("", label):
                wrong.setdefault(label, []).append(example)
        for label, examples in wrong.items():
            self._merge(examples, label)

    def checkpoint(self) -> Checkpoint:
        """A checkpoint of the current state."""
        with self.lock.reading():
            plain = self.model.plain() | {"sampler": self.sampler.state()}
            return Checkpoint(
                event=self.event,
                fingerprint=self.backbone.spec.fingerprint,
                config=json.loads(self.settings.to_json()),
                tensors={name: t.cpu().clone() for name, t in self.model.tensors().items()},
                state=json.loads(json.dumps(plain)),
            )

    def restore(
        self, saved: Checkpoint, taken: Mapping[int, tuple[str, Tensor]] | None = None
    ) -> None:
        """Restore a checkpoint.

        `taken` are labels and image embeddings of examples that were just forgotten.
        """
        if saved.fingerprint != self.backbone.spec.fingerprint:
            raise CheckpointError("The checkpoint belongs to another model than its memory.")
        whole = self.model.restore(saved.tensors, saved.state)
        for example, label in self.memory.ids_at(saved.event):
            if label not in self.rows:
                raise CheckpointError(
                    "The checkpoint belongs to another memory. Delete it: learning is repeated "
                    "from the memory."
                )
            self.examples.add(example, label)
        self.sampler.restore(saved.state["sampler"])
        if whole:
            self._take_back({i: gone for i, gone in (taken or {}).items() if i <= saved.event})
        for label in saved.state["labels"]:
            if not self.examples.count(label):  # forgotten since
                self.model.retire(label)
        self.event = saved.event
        if self._miscounted or not whole:  # or of a version without experts
            self.recount()

    def _take_back(self, taken: Mapping[int, tuple[str, Tensor]]) -> None:
        """Remove examples from a restored state that were forgotten since."""
        for example, (label, image) in taken.items():
            self.model.remove(example, label, image)
        self.model.let_go([example for example in self.model.kept if not self.label_of(example)])
        counted = zip(self.labels, self.model.gaussian.now.counts.tolist(), strict=True)
        # Fewer are no error: a record may be damaged. More include an example that was removed.
        self._miscounted = any(count > self.examples.count(label) for label, count in counted)

    @torch.no_grad()
    def correct(self, act: Act) -> Learned | None:
        """Apply a correction; returns the result for the last example that was learned again.

        A relabelled example is learned again with its new label. Merging and renaming change the
        labels in experts and sampler, but take no step.
        """
        learned = None
        known = self.examples.known(act.examples)
        if act.kind == WITHDRAW:
            self.forget(known, dict(zip(*self.images(known), strict=True)))
        elif act.label is None:
            pass
        elif act.kind == RENAME:
            self._rename(act.before[0], act.label)
        elif act.kind == MERGE:
            self._merge(known, act.label)
        else:
            learned = self._teach_again(known, act.label, act.number)
        self.event = act.number
        return learned

    def forget(self, examples: Sequence[int], images: Mapping[int, Tensor] | None = None) -> None:
        """Remove examples; a label without examples becomes unseen.

        `images` are the image embeddings of those that could still be read. Without it, an example
        stays in the statistics until `recount`, which `replay` calls at its end.
        """
        if not examples:
            return
        with self.lock.writing():
            self.learner.let_go(examples)
            for example in self.examples.known(examples):  # not those removed before
                label, image = self.label_of(example), (images or {}).get(example)
                self._miscounted |= image is None
                self.model.remove(example, label, image)
                if self.examples.remove(example):
                    self.model.retire(label)

    def _teach_again(self, copies: Sequence[int], label: str, number: int) -> Learned | None:
        learned = None
        try:
            for each in self.memory.stored(copies):
                learned = self.teach(each.id, label, each.record, each.candidates, number)
        except BaseException:
            # Only some of the copies of an image were relabelled.
            self.lock.torn = self.lock.torn or learned is not None
            raise
        return learned

    def _rename(self, label: str, to: str) -> None:
        if label not in self.rows:
            return
        vector = self._embed_alone(to)
        with self.lock.writing():
            self.model.rename(label, to, vector)
            self.examples.rename(label, to)

    def _merge(self, examples: Sequence[int], label: str) -> None:
        found, images = self.images(examples)
        image_of = dict(zip(found, images, strict=True))
        self.enter(label)
        with self.lock.writing():
            for example in examples:
                self.move(example, label, image_of.get(example))

    def recount(self, progress: Progress | None = None) -> None:
        """Recompute the experts' statistics from the stored examples."""
        found, images = self.images(self.examples.ids(), progress)
        with self.lock.writing():
            self.model.count(found, [self.label_of(example) for example in found], images)
        self._miscounted = False

    def images(
        self, examples: Sequence[int], progress: Progress | None = None
    ) -> tuple[list[int], Tensor]:
        """Ids of the readable ones, and the original model's embeddings of them [example, dim]."""
        found, images = [], [torch.empty(0, self.backbone.spec.dim)]
        for start in range(0, len(examples), CHUNK):
            for each in self.memory.stored(examples[start : start + CHUNK]):
                images.append(self.image(each.record).unsqueeze(0))
                found.append(each.id)
            if progress is not None:
                progress(min(start + CHUNK, len(examples)), len(examples))
        return found, torch.cat(images)

    def _repeat(self, example: int, past: LabelHistory) -> None:
        for each in self.memory.stored([example]):  # none, if it was forgotten since
            label = past.label_at(example, example, self.memory.label(example))
            if label is not None:  # None: it was undone
                self.teach(example, label, each.record, each.candidates)


def _epochs(event: Event) -> int:
    epochs = event.data.get("epochs")
    if not isinstance(epochs, int) or epochs < 1:
        raise StoreError(
            f"Event {event.number} ({event.kind!r}) of the memory has no valid 'epochs', and so "
            "cannot be replayed: restore a backup."
        )
    return epochs
