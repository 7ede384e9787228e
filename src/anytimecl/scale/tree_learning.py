"""The part of a tree that learns: it sends each example to its leaf, once."""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Iterable, Mapping, Sequence, Sized
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from anytimecl.codec import Codec
from anytimecl.errors import StoreError
from anytimecl.images import ImageSource
from anytimecl.learning import check_text, checked_labels
from anytimecl.predicting import digest_of
from anytimecl.scale.keys import OneAtATime
from anytimecl.scale.leaf import LeafLesson, vector_of
from anytimecl.scale.leaves import Unreachable
from anytimecl.scale.pending import PENDING, MustWait
from anytimecl.scale.second_copy import SecondCopy, then
from anytimecl.scale.tree_splitting import TreeSplitting
from anytimecl.trainer import Learned

Example = tuple[ImageSource, str] | tuple[ImageSource, str, str | None]  # the last is its key


class TreeLearning(TreeSplitting):
    """Learns; examples for different leaves are learned in parallel."""

    codec: Codec
    _teaching: OneAtATime  # keys on their way
    _copy: SecondCopy | None

    def learn_one(
        self,
        image: ImageSource,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """Learn one labelled image; it is durable when this returns.

        A full leaf is split in the background (`settle` waits for it), and used until its children
        are ready.
        """
        tokens = self.encode([image])[0]
        return self.learn_tokens(tokens, label, candidates=candidates, key=key)

    def learn_tokens(
        self,
        tokens: Tensor,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for the tokens [token, width] of an image, from `encode`."""
        return self._durable(self.submit_tokens(tokens, label, candidates=candidates, key=key))

    def learn_record(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere."""
        return self._durable(self.submit(record, label, candidates=candidates, key=key))

    def learn_lesson(self, lesson: LeafLesson) -> Learned:
        """`learn_record` for an example of another tree or its second copy."""
        return self._durable(self._submitted(lesson))

    def learn_many(self, examples: Iterable[Example]) -> int:
        """`learn_one` for each (image, label) or (image, label, key); leaves learn in parallel."""
        sent = []
        for image, label, key in map(parts_of, examples):
            sent.append(self.submit_tokens(self.encode([image])[0], label, key=key))
        return len([self._durable(future) for future in sent])

    def _durable(self, future: Future[Learned]) -> Learned:
        """The result of an example that was sent, when it is stored."""
        self._pending.wait(future)
        return future.result()

    def submit_tokens(self, tokens: Tensor, label: str, **options: Any) -> Future[Learned]:
        """`submit` for the tokens [token, width] of an image."""
        record = self.codec.encode(tokens)
        return self.submit(record, label, content=digest_of(tokens), **options)

    def submit(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
        content: int | None = None,
        vector: Tensor | None = None,
        may_wait: bool = True,
    ) -> Future[Learned]:
        """Send a record to its leaf; the example is durable when the future has a result.

        If too many are pending for that leaf, or while it is split, this waits or, without
        `may_wait`, raises `MustWait` with the request to wait for. `content` is the digest of the
        image's tokens (`digest_of`), to recognise the image. `vector` [dim] is the record's
        embedding; without it, the record is checked here.
        """
        label, chosen = checked_labels(label, candidates)
        check_text("key", key)
        return self._submitted(LeafLesson(record, label, chosen, key, content), vector, may_wait)

    def _submitted(
        self, lesson: LeafLesson, vector: Tensor | None = None, may_wait: bool = True
    ) -> Future[Learned]:
        """`submit` for a lesson whose label is in order."""
        if vector is None:
            vector = vector_of(self.backbone, self.codec, lesson.record)
        if self._copy is not None and lesson.key is None:
            lesson = lesson._replace(key=uuid.uuid4().hex)  # for learning it again from the copy
        # Now, when no lock is held.
        self.leaves.introduce([lesson.label, *(lesson.candidates or ())])
        key = lesson.key
        if key is None:
            return self._sent(lesson, vector, may_wait)
        self._pending.check(self.routes.leaf_of(vector))
        # A second request with the same key waits for the first.
        if not self._teaching.enter(key, self._pending.stuck):
            raise Unreachable(f"A lesson under the key {key!r} is on its way since long.")
        try:
            future = self._sent(lesson, vector, may_wait)
        except BaseException:
            self._teaching.leave(key)
            raise
        future.add_done_callback(lambda _: self._teaching.leave(key))
        return future

    def _sent(self, lesson: LeafLesson, vector: Tensor, may_wait: bool) -> Future[Learned]:
        """Send to its leaf, unless another leaf has its key."""
        without: set[int] = set()  # leaves that do not have the key
        while True:
            with self._lock:
                if self._stopped is not None:
                    raise StoreError(str(self._stopped))
                leaf = self.routes.leaf_of(vector)
                others = self._holders(lesson.key) - {leaf} - without
                split = self._splitting.get(leaf)
                room = 1 if may_wait else PENDING // 2
                first = None if others else split or self._pending.before(leaf, room)
                if not others and first is None:
                    future = self._taught(leaf, lesson)
                    break
            if first is not None:
                if not may_wait:
                    raise MustWait(first)
                self._pending.wait(first)  # its own caller sees what went wrong
            elif known := self._known(others.pop(), lesson, without):
                future = Future()
                future.set_result(known)
                with self._lock:
                    if self._holders(lesson.key) - without:  # else it was forgotten meanwhile
                        # The second copy may have failed the first time.
                        return self._on_the_way(leaf, self._copied(lesson, future))
        if self._counts.due:
            self._count_on_the_way()
        return future

    def _holders(self, key: str | None) -> set[int]:
        """Leaves that may have the key."""
        leaf = None if key is None else self._keys.leaf_of(key)
        if leaf is None:
            return set()
        # Neither there nor moved: it has split, and its children do not have the key.
        return {its for its in self._moved.get(leaf, (leaf,)) if its in self._sizes}

    def _known(self, leaf: int, lesson: LeafLesson, without: set[int]) -> Learned | None:
        """A leaf's result for a key; a leaf that does not have it is added to `without`."""
        self._pending.check(leaf)
        try:
            known: Learned | None = self.leaves.call(leaf, "known", lesson)
        except (Unreachable, StoreError):  # the second, where it is being closed
            with self._lock:
                if leaf in self._sizes:
                    raise
            return None  # it has split meanwhile: look again
        if known is None:
            without.add(leaf)
        return known

    def _taught(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        """Send it; with the lock held."""
        if lesson.key is not None and self._keys.leaf_of(lesson.key) != leaf:
            self._keys.claim(lesson.key, leaf)
        future = self._on_the_way(leaf, self._copied(lesson, self.leaves.teach(leaf, lesson)))
        self._labels.sent(leaf, lesson.label, future)
        self._sizes[leaf] += 1
        future.add_done_callback(lambda done: self._counts.acknowledged(leaf, done))
        self._split_if_full(leaf)
        return future

    def _on_the_way(self, leaf: int, future: Future[Learned]) -> Future[Learned]:
        """Note that an example is pending, so that `forget` waits for it."""
        self._pending.add(leaf, future)
        return future

    def _copied(self, lesson: LeafLesson, learned: Future[Learned]) -> Future[Learned]:
        """A future that also waits for the second copy."""
        copy = self._copy
        return learned if copy is None else then(learned, lesson, copy)

    def _count_on_the_way(self) -> None:
        """Save counts if due; errors are not those of the example, which is stored."""
        try:
            self._counts.try_to_save()
        except StoreError as error:  # another owner
            self._stopped = error

    def check_lesson(self, lesson: Future[Learned]) -> None:
        """Raise `Unreachable` if the leaf of a pending `submit` is stuck."""
        self._pending.check_lesson(lesson)


def parts_of(example: Example) -> tuple[ImageSource, str, str | None]:
    """Image, label and key of an example; TypeError if it is none.

    >>> parts_of(("a.jpg", "cat"))
    ('a.jpg', 'cat', None)
    """
    texts = isinstance(example, str | bytes | Mapping)  # which have a length, too
    if texts or not isinstance(example, Sized) or len(example) not in (2, 3):
        told = reprlib.repr(example)
        raise TypeError(f"An example is (image, label) or (image, label, key), not {told}.")
    image, label, *key = example
    return image, label, key[0] if key else None
