"""The part of a classifier that learns: one example at a time, in order of arrival."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

from torch import Tensor

from anytimecl.errors import AnytimeError, LabelError, ModelError, StoreError
from anytimecl.images import ImageSource
from anytimecl.labels import askable, teachable
from anytimecl.memory import FileKey, RequestKey, Row
from anytimecl.recording import Record, Recording
from anytimecl.retries import check_same
from anytimecl.trainer import Learned


class Learning(Recording):
    """Learning of labelled images; each is durable when its call returns."""

    def learn_one(
        self,
        image: ImageSource,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
        source: str | None = None,
    ) -> Learned:
        """Learn one labelled image; it is durable when this returns.

        One image has one label. If the image is in memory already (the same content, whatever its
        name), another label replaces the old one, which is returned as `Learned.replaced`; the same
        label changes nothing.

        Parameters
        ----------
        image
            A path, bytes, an open file, a Pillow image or an array.
        label
            Its label.
        candidates
            Candidate labels of the example, its own included: the classes of its loss. By default
            every label seen so far.
        key
            Idempotency key: repeating a call with its key learns nothing more. An error with
            another image or label.
        source
            Name of the image where it comes from; by default its path, if it has one.

        Returns
        -------
        Learned
            Its number, and which models had predicted it rightly before.

        Raises
        ------
        ImageError
            The image cannot be read.
        LabelError
            The label cannot be used.
        KeyUsedError
            The key was used with another image or label.
        StoreError
            The memory is read-only, closed or damaged, or the disk is full.
        """
        label, chosen = checked_labels(label, candidates)
        return self._learn(self._record(image, source), label, chosen, key)

    def learn_tokens(
        self,
        tokens: Tensor,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
        source: str | None = None,
        thumbnail: bytes | None = None,
    ) -> Learned:
        """`learn_one` for the tokens [token, width] of an image, from `encode`.

        Parameters
        ----------
        tokens
            [token, width], of one image.
        label
            Its label.
        candidates
            Candidate labels of the example, its own included: the classes of its loss. By default
            every label seen so far.
        key
            Idempotency key: repeating a call with its key learns nothing more. An error with
            another image or label.
        source
            Name of the image where it comes from.
        thumbnail
            From `thumbnails.thumbnail_of`; stored if the memory stores thumbnails.

        Returns
        -------
        Learned
            Its number, and which models had predicted it rightly before.

        Raises
        ------
        ModelError
            They are not the tokens of one image.
        LabelError
            The label cannot be used.
        KeyUsedError
            The key was used with another image or label.
        StoreError
            The memory is read-only, closed or damaged, or the disk is full.
        """
        label, chosen = checked_labels(label, candidates)
        if not isinstance(tokens, Tensor):
            given = type(tokens).__name__
            raise ModelError(f"Tokens are a tensor, as `encode` gives them, not {given}.")
        record = self._compressed(tokens)._replace(source=source, thumbnail=thumbnail)
        return self._learn(record, label, chosen, key)

    def learn_compressed(
        self,
        record: bytes,
        label: str,
        *,
        fingerprint: str,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere.

        Parameters
        ----------
        record
            The output of this memory's codec.
        label
            Its label.
        fingerprint
            `backbone.spec.fingerprint` of the model it was encoded with; the record lacks it.
        candidates
            Candidate labels of the example, its own included: the classes of its loss. By default
            every label seen so far.
        key
            Idempotency key: repeating a call with its key learns nothing more. An error with
            another image or label.

        Returns
        -------
        Learned
            Its number, and which models had predicted it rightly before.

        Raises
        ------
        LabelError
            The label cannot be used.
        KeyUsedError
            The key was used with another image or label.
        StoreError
            The record is damaged, or of another model or codec; or the memory cannot be written.
        """
        label, chosen = checked_labels(label, candidates)
        self._check_record(record, fingerprint)
        return self._learn(Record(bytes(record)), label, chosen, key)

    def learn_many(
        self,
        examples: Iterable[tuple[ImageSource, str] | tuple[ImageSource, str, str | None]],
        *,
        report: Callable[[Learned | AnytimeError], None] | None = None,
    ) -> int:
        """`learn_one` for each (image, label) or (image, label, key); returns how many.

        The next images are encoded while one is learned. With `report`, an image or label that
        cannot be used is reported and skipped; without it, the first one raises, and the examples
        before it stay learned.

        Parameters
        ----------
        examples
            Tuples (image, label) or (image, label, key).
        report
            Called with the result or the error of each.

        Returns
        -------
        int
            How many were learned.

        Raises
        ------
        ImageError
            The image cannot be read.
        LabelError
            The label cannot be used.
        KeyUsedError
            A key was used with another image or label.
        StoreError
            The memory is read-only, closed or damaged, or the disk is full.
        TypeError
            One of them is no such tuple.
        """

        def ready(example: tuple[Any, ...]) -> Callable[[], Learned]:
            texts = isinstance(example, str | bytes | Mapping)  # which have a length, too
            if texts or not isinstance(example, Sized) or len(example) not in (2, 3):
                told = reprlib.repr(example)
                raise TypeError(f"An example is (image, label) or (image, label, key), not {told}.")
            image, label, *rest = example
            label, key = teachable(label), rest[0] if rest else None
            if key is not None and isinstance(image, str | os.PathLike):
                known = self.memory.has_key(key)  # a known file is not read again
                if known and self.memory.told_of(known) == (label, os.fspath(image)):
                    return lambda: Learned(known, right=True, tuned=True, original=True)
            record = self._record(image)
            return lambda: self._learn(record, label, None, key)

        count = 0
        for result in self.ahead(examples, ready):
            try:
                learned = result()()
            except AnytimeError as error:
                if report is None or isinstance(error, StoreError):
                    raise
                report(error)
            else:
                count += 1
                if report is not None:
                    report(learned)
        return count

    def _known(self, key: str, label: str, record: Record) -> Learned | None:
        """The result for a key that was used before, None for a new one; raises KeyUsedError."""
        known = self.memory.taught_by(key)
        if known is None:
            return None
        if not isinstance(key, RequestKey):
            check_same(self._trainer, known, key, label, record.data, record.content)
        return Learned(known, right=True, tuned=True, original=True)

    def _learn(
        self, record: Record, label: str, candidates: tuple[str, ...] | None, key: str | None
    ) -> Learned:
        check_text("key", key)
        check_text("source", record.source)
        with self._learning:
            self._catch_up()
            if key is not None and (known := self._known(key, label, record)) is not None:
                return known
            trainer = self._trainer
            trainer.check(label, candidates or ())
            self.memory.check_writable()
            if copies := self.memory.copies(record.content):
                return self._learn_again(copies, label, key, record.source)
            thumbnail = record.thumbnail if self.memory.thumbnails else None
            row = Row(label, record.data, candidates, key, record.time, record.content)
            row = row._replace(source=record.source, thumbnail=thumbnail)
            example = self.memory.append_row(row)
            if self.memory.last > example:
                self._make_room(example)
            learned = trainer.teach(example, label, record.data, candidates)
            trainer.event = self.memory.last
            self._checkpointer.unsaved += 1
            if self._checkpointer.due:
                self._save(wait=False)
            return learned

    def _make_room(self, newcomer: int) -> None:
        """Remove examples from the model that were evicted for a new one."""
        gone, image = self.memory.evicted.items(), self._trainer.image
        leaving = {evicted: image(data) for evicted, data in gone}
        events = self.memory.events(newcomer)
        self._trainer.forget([event.data["example"] for event in events], leaving)

    def _learn_again(
        self, copies: Sequence[tuple[int, str]], label: str, key: str | None, source: str | None
    ) -> Learned:
        """Learn an image that is in memory: another label replaces the old one."""
        newest, _before = copies[-1]
        wrong = [example for example, was in copies if was != label]
        if not wrong:
            self._note_key(key, newest, label)
            return Learned(newest, right=True, tuned=True, original=True)
        learned = self._change(wrong, label, key, source, taught=True)
        was = dict(copies)[wrong[-1]]
        told = learned or Learned(newest, right=False, tuned=False, original=False)
        return told._replace(right=False, replaced=was)

    def _note_key(self, key: str | None, example: int, label: str) -> None:
        """Store the key of a call that learned nothing new, so that its retry does not either."""
        if key is None or isinstance(key, FileKey):
            return
        with self.memory.writing():
            if isinstance(key, RequestKey):
                self.memory.keys.add(key, example)
            else:
                self.memory.keys.add_former(key, example, label)


def checked_labels(
    label: str, candidates: Sequence[str] | None
) -> tuple[str, tuple[str, ...] | None]:
    """The label of an example and its candidates, as they are stored."""
    cleaned = teachable(label)
    if candidates is None:
        return cleaned, None
    chosen = askable(candidates)
    if cleaned not in chosen:
        raise LabelError(f"The label {cleaned!r} is not among its candidates.")
    return cleaned, tuple(chosen)


def check_text(what: str, text: Any) -> None:
    """Raise TypeError if a key or name is given that is no text."""
    if text is not None and not isinstance(text, str):
        raise TypeError(f"A {what} is text, not {type(text).__name__}: {reprlib.repr(text)}.")
