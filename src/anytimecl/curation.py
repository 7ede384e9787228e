"""The part of a classifier that corrects labels: relabel, rename, merge, undo.

Every correction is one journal entry. It is written first, then applied by the code that replays it
after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anytimecl.errors import LabelTakenError, StoreError, UnknownLabelError
from anytimecl.labels import clean_label, teachable
from anytimecl.memory import acts
from anytimecl.memory.contract import Event
from anytimecl.recovery import Recovery, number_of
from anytimecl.trainer import Learned


class Relabelled(NamedTuple):
    """An example, its label, and its previous label."""

    id: int
    label: str
    before: str


class Undone(NamedTuple):
    """A change that was undone: "teach", "relabel", "rename" or "merge"."""

    act: str
    examples: tuple[int, ...]  # empty for a renamed label: all of its examples
    label: str  # given by the change
    before: str | None  # restored; None: the example was new, and is removed


class Curation(Recovery):
    """Corrections of labels."""

    def relabel(self, example_id: int, label: str) -> Relabelled:
        """Give a stored example, and every copy of its image, another label.

        Experts and replay use the new label at once, and one step is taken with it. Earlier steps
        with the old label stay in the tuned weights, until replay, `consolidate` or `rebuild`
        correct them.

        Parameters
        ----------
        example_id
            Number of the example, `Learned.id`.
        label
            The correct label.

        Returns
        -------
        Relabelled
            With its previous label.

        Raises
        ------
        StoreError
            There is no such example.
        LabelError
            The label cannot be used.
        """
        label, example_id = teachable(label), number_of(example_id)
        with self._learning:
            self._ready(label)
            before = self.memory.label(example_id)
            if before is None:
                raise StoreError(f"The memory has no example {example_id}: it was taken back.")
            wrong = [each for each, was in self._copies(example_id) if was != label]
            if wrong:
                self._change(wrong, label)
            return Relabelled(example_id, label, before)

    def rename_label(self, old: str, new: str) -> int:
        """Rename a label.

        The experts do not change. The tuned model is trained against the new text embedding only
        from the next replay of the label's examples on.

        Parameters
        ----------
        old
            Its current name.
        new
            Its new name.

        Returns
        -------
        int
            Number of its examples.

        Raises
        ------
        UnknownLabelError
            There is no label `old`.
        LabelTakenError
            There are examples of `new` already.
        LabelError
            `new` cannot be used.
        """
        old, new = clean_label(old), teachable(new)
        with self._learning:
            self._ready(new)
            self._check_known(old)
            if old != new:
                with self.memory.writing():
                    acts.rename(self.memory, old, new)
                self._follow()
            return self.memory.labels().get(new, 0)

    def merge_labels(self, source: str, into: str) -> int:
        """Move every example of one label to another, existing label.

        No gradient step is taken: the statistics are moved, and replay adapts the tuned model.

        Parameters
        ----------
        source
            The label that disappears.
        into
            The new label of its examples.

        Returns
        -------
        int
            Number of relabelled examples.

        Raises
        ------
        UnknownLabelError
            One of the two has no example.
        LabelTakenError
            They are the same.
        """
        source, into = clean_label(source), teachable(into)
        with self._learning:
            self._ready(into)
            self._check_known(source, into)
            if source == into:
                raise LabelTakenError(f"{source!r} is one label already.")
            moving = [example for example, _ in self.memory.ids(source)]
            readable = [each.id for each in self.memory.stored(moving)]
            if readable:
                with self.memory.writing():
                    acts.move(self.memory, readable, into, kind=acts.MERGE)
                self._follow()
            return len(readable)

    def undo(self, steps: int = 1) -> list[Undone]:
        """Undo the last changes (learning, relabelling, renaming, merging), the newest first.

        All of them, or none if that many cannot be undone: forgetting cannot. A learned example is
        removed from memory, experts and replay; its gradient step stays in the weights. This works
        after a restart too.

        Parameters
        ----------
        steps
            How many changes.

        Returns
        -------
        list of Undone
            What was undone, the newest first.

        Raises
        ------
        ValueError
            `steps` is not a whole number from 1.
        StoreError
            So many changes cannot be undone.
        """
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps is a whole number from 1, not {steps!r}.")
        with self._learning:
            self._ready()
            with self.memory.writing():
                events = acts.last_acts(self.memory, steps)
                told = [self._taken_back(event) for event in events]
            self._follow()
            return told

    def thumbnail(self, example_id: int) -> bytes | None:
        """The thumbnail of an example, if one is stored.

        Parameters
        ----------
        example_id
            Number of the example, `Learned.id`.

        Returns
        -------
        bytes or None
            A WebP file.

        Raises
        ------
        StoreError
            The memory is closed or damaged.
        """
        return self.memory.thumbnail(number_of(example_id))

    def _taken_back(self, event: Event) -> Undone:
        if event.kind == acts.LEARN:
            label = self.memory.label(event.number)
            acts.undo(self.memory, event)
            return Undone("teach", (event.number,), label or "", None)
        act = acts.act_of(event)
        assert act is not None
        assert act.label is not None
        acts.undo(self.memory, event)
        return Undone(act.kind, act.examples, act.label, act.before[0])

    def _copies(self, example: int) -> list[tuple[int, str]]:
        """All examples of the same image, with their labels."""
        with self.memory.reading():
            digest = self.memory.about.digest(example)
        return self.memory.copies(digest) or [(example, self.memory.label(example) or "")]

    def _change(
        self,
        examples: Sequence[int],
        label: str,
        key: str | None = None,
        source: str | None = None,
        *,
        taught: bool = False,
    ) -> Learned | None:
        """Relabel examples; if learned again (`taught`), also store its key and source."""
        newest = examples[-1]
        keys = [key if each == newest else None for each in examples] if taught else None
        with self.memory.writing():
            acts.move(self.memory, examples, label, keys=keys)
            if source is not None:
                self.memory.about.set_source(newest, source)
        return self._follow()

    def _check_known(self, *labels: str) -> None:
        known = self.memory.labels()
        for label in labels:
            if label not in known:
                raise UnknownLabelError(f"There is no example of {label!r}.")

    def _follow(self) -> Learned | None:
        """Apply corrections that were just written to the journal."""
        learned = None
        past = self.memory.history(self._trainer.event)
        for act in past.acts.values():
            learned = self._trainer.correct(act)
        self._trainer.replay()  # recounts if a record could not be read
        self._checkpointer.unsaved += len(past.acts)
        if self._checkpointer.due:
            self._save(wait=False)
        return learned

    def _ready(self, label: str | None = None) -> None:
        """Check and prepare for a correction, and for its label."""
        self.memory.check_writable()
        self._catch_up()
        if label is not None:
            self._trainer.check(label, ())
