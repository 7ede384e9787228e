"""A tree of classifiers: each leaf learns a part of the embedding space, and splits when full.

An image is routed down the tree to the leaf with the nearer centre at every fork; that leaf learns,
stores and predicts it. With one leaf this is `AnytimeClassifier`, bit for bit.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone import load as load_backbone
from anytimecl.classifier import LabelStats
from anytimecl.closing import Closing
from anytimecl.codec import make_codec
from anytimecl.errors import LabelError, StoreError
from anytimecl.images import ImageSource
from anytimecl.labels import clean_label, clean_labels
from anytimecl.memory import Report, StoreWarning
from anytimecl.predicting import digest_of
from anytimecl.registry import Choice
from anytimecl.scale import splitting
from anytimecl.scale.answers import pooled
from anytimecl.scale.counts import Counts
from anytimecl.scale.homes import LabelHomes
from anytimecl.scale.keys import KeyIndex, OneAtATime
from anytimecl.scale.leaf import LeafLesson, vector_of
from anytimecl.scale.leaves import Health, Here, Leaves, Unreachable, leaf_folder
from anytimecl.scale.pending import PENDING, Lessons, MustWait, Silence
from anytimecl.scale.routes import Routes
from anytimecl.scale.second_copy import NO_COPY, SecondCopy, settled, then
from anytimecl.scale.shortlist import ManyLabels
from anytimecl.scale.snapshots import TreeReport, checked, finish, making
from anytimecl.scale.splitting import Undecided, split_leaf
from anytimecl.scale.tree_folder import (
    ASIDE,
    COPIED,
    COPY,
    FILE,
    IDENTITY,
    UNREAD,
    TreeFolder,
)
from anytimecl.scale.tree_opening import check_loss, prepared
from anytimecl.scale.tree_predicting import TreePredicting
from anytimecl.settings import Settings
from anytimecl.trainer import Learned

__all__ = ["FILE", "TreeClassifier"]
PATIENCE = 2.0  # seconds that a leaf's answer is waited for, and longer for long questions
STUCK = 30.0  # seconds without progress after which a leaf with pending examples is stuck
BACK_OFF = 30.0, 3600.0  # seconds until a split that failed is tried again, doubling, and at most
NEVER = 2**62  # an event that no memory reaches
MakeLeaves = Callable[[Path, Backbone, Settings], Leaves]


class TreeClassifier(TreePredicting, Closing):
    """`AnytimeClassifier` over a growing number of leaves.

    A leaf with more than `capacity` examples is split in two; None: never. A prediction uses the
    `near` nearest leaves, with a timeout of `patience` seconds each. A leaf that has pending
    examples and learns none for `stuck` seconds is considered stuck: requests to it raise
    `Unreachable` until it continues, and other leaves are not delayed. Ids of examples are local to
    a leaf and change when it splits; keys do not. So `forget` takes a label only, and there is no
    `predict_proba`, `rebuild` or `save_pretrained`.
    """

    def __init__(
        self,
        place: TreeFolder,
        backbone: Backbone,
        settings: Settings,
        routes: Routes,
        leaves: Leaves,
        keys: KeyIndex,
        *,
        capacity: int | None = None,
        near: int = 1,
        patience: float = PATIENCE,
        stuck: float = STUCK,
    ) -> None:
        self.folder, self.backbone, self.settings = place.path, backbone, settings
        self.capacity, self.near = capacity, near
        self.patience = patience
        self.routes, self.leaves = routes, leaves
        self.codec = make_codec(settings.codec, backbone.spec, backbone.tail)
        self._place, self._keys = place, keys
        self._lock = threading.RLock()  # one at a time decides where an example goes
        self._changing = threading.RLock()  # one at a time splits or forgets; before `_lock`
        self._pending, self._silence = Lessons(stuck), Silence()
        self._teaching = OneAtATime()  # keys on their way
        self._splitter = ThreadPoolExecutor(1, "anytimecl-split")
        self._splitting: dict[int, Future[None]] = {}
        self._moved: dict[int, tuple[int, int]] = {}  # split, and its keys are not read yet
        self._not_before: dict[int, tuple[float, float]] = {}  # when to split again; the pause
        self._stopped: StoreError | None = None  # why learning has stopped
        extents = {leaf: leaves.call(leaf, "extent") for leaf in routes.leaves()}
        self._sizes = {leaf: size for leaf, (size, _) in extents.items()}
        self._counts = Counts(place, extents)  # acknowledged; sizes are what was sent
        self._closed = False
        self._limit: dict[int, int | None] = dict.fromkeys(self._sizes, capacity)
        self._copy: SecondCopy | None = None
        self._identity = place.noted(IDENTITY) or uuid.uuid4().hex
        self._last_asked: tuple[tuple[str, ...], ManyLabels] | None = None
        self._labels = LabelHomes()
        for leaf in routes.leaves():
            self._labels.put(leaf, leaves.call(leaf, "known_labels"))

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        model: Choice[Backbone] | Path = "embedded",
        settings: Settings | None = None,
        device: str = "cpu",
        leaves: MakeLeaves = Here,
        accept_loss: bool = False,
        copy_to: str | None = None,
        **options: Any,
    ) -> Self:
        """Create the tree in `folder`, or reopen it; `options` are `capacity` and `near`.

        One owner at a time. Missing leaves or examples are a StoreError that names them; with
        `accept_loss` the tree continues without them. Acknowledged examples are also written to
        `copy_to`, a folder on another disk or an address of fsspec, which the tree keeps until it
        is opened with another one, or with "none".
        """
        backbone = load_backbone(model, device=device)
        with ExitStack() as opened:  # closes everything, unless all goes well
            place = opened.enter_context(TreeFolder(Path(folder)))
            backbone, routes, agreed, anew = prepared(place, backbone, settings, accept_loss)
            made = leaves(place.path, backbone, agreed)
            opened.callback(made.close)
            made.start(routes.leaves(), create=False)
            keys = opened.enter_context(KeyIndex(place.path))
            tree = cls(place, backbone, agreed, routes, made, keys, **options)
            tree._begin(anew, accept_loss, copy_to)
            opened.pop_all()
            return tree

    def _begin(self, anew: set[int], accept_loss: bool, copy_to: str | None) -> None:
        """Take ownership and clean up, when every leaf is open."""
        lost = self._place.fewer({n: size for n, size in self._sizes.items() if n not in anew})
        check_loss(self._place, lost, accept_loss)
        before, last = self._place.noted(COPY), self._place.noted(COPIED) or "0"
        chosen = copy_to or before
        # Until another place is whole, the tree has this one.
        kept = {COPY: before, COPIED: last} if before and chosen != NO_COPY else {}
        self._place.take_over(self.routes, {**self._meta(), **kept})
        self._place.tidy(self.routes)
        self._keys.keep(self._sizes)
        for leaf in self._sizes:
            self._read_keys(leaf)
        self._counts.save()
        if chosen and chosen != NO_COPY:
            same = before is not None and settled(chosen) == settled(before)
            self._begin_copy(settled(chosen), int(last) if same else None)

    def _begin_copy(self, address: str, noted: int | None) -> None:
        """Start the second copy; an incomplete one gets all examples first."""
        told = self._told_of_itself()
        copy = SecondCopy(address, self._identity, self._place.owner, told, noted=noted)
        try:
            for leaf in () if copy.whole else sorted(self._sizes):
                before, last = -1, 0
                while before < last:  # those that cannot be read are not all that there are
                    before, (some, last) = last, self.leaves.call(leaf, "lessons_after", last)
                    for written in [copy.put(lesson) for lesson in some]:
                        written.result()
            copy.declare_whole()
            self._copy = copy
            self._place.save(self.routes, self._meta())  # from now on it is whole
        except BaseException:
            self._copy = None
            copy.close()
            raise

    def _told_of_itself(self) -> dict[str, str]:
        spec = json.dumps(self.backbone.spec.to_dict())
        return {**_meta(self.backbone, self.settings), "spec": spec}

    def _meta(self) -> dict[str, str]:
        """Metadata of the routes."""
        told = {**_meta(self.backbone, self.settings), IDENTITY: self._identity}
        if self._copy is None:
            return told
        return {**told, COPY: self._copy.address, COPIED: str(self._place.owner)}

    # ------------------------------------------------------------------------------- learning

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
        future = self.submit_tokens(tokens, label, candidates=candidates, key=key)
        self._pending.wait(future)
        return future.result()

    def learn_record(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere."""
        future = self.submit(record, label, candidates=candidates, key=key)
        self._pending.wait(future)
        return future.result()

    def learn_lesson(self, lesson: LeafLesson) -> Learned:
        """`learn_record` for an example of another tree or its second copy."""
        record, label, candidates, key, content = lesson
        future = self.submit(record, label, candidates=candidates, key=key, content=content)
        self._pending.wait(future)
        return future.result()

    def learn_many(
        self, examples: Iterable[tuple[ImageSource, str] | tuple[ImageSource, str, str | None]]
    ) -> int:
        """`learn_one` for each (image, label) or (image, label, key); leaves learn in parallel."""
        sent = []
        for image, label, *rest in examples:
            tokens = self.encode([image])[0]
            sent.append(self.submit_tokens(tokens, label, key=rest[0] if rest else None))
        for future in sent:
            self._pending.wait(future)
        return sum(1 for future in sent if future.result())

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
        label = clean_label(label)
        chosen = None if candidates is None else tuple(clean_labels(candidates))
        if chosen is not None and label not in chosen:
            raise LabelError(f"The label {label!r} is not among its candidates.")
        if vector is None:
            vector = vector_of(self.backbone, self.codec, record)
        if self._copy is not None and key is None:
            key = uuid.uuid4().hex  # for learning it again from the copy
        lesson = LeafLesson(record, label, chosen, key, content)
        self.leaves.introduce([label, *(chosen or ())])  # now, when no lock is held
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
                return self._copied(lesson, future)  # it may have failed there the first time
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
        future = self._copied(lesson, self.leaves.teach(leaf, lesson))
        self._pending.add(leaf, future)
        self._labels.sent(leaf, lesson.label, future)
        self._sizes[leaf] += 1
        future.add_done_callback(lambda done: self._counts.acknowledged(leaf, done))
        self._split_if_full(leaf)
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

    def _read_keys(self, leaf: int) -> None:
        """Update the index of keys from a leaf."""
        mark = self._keys.mark(leaf)
        keys, last = self.leaves.call(leaf, "keys_after", mark)
        if last < mark:  # an older memory was put in its place
            keys, last = self.leaves.call(leaf, "keys_after", 0)
        self._keys.add(leaf, keys, last)

    # -------------------------------------------------------------------------------- splitting

    def _split_if_full(self, leaf: int) -> None:
        """Start splitting a leaf in the background; requires the lock."""
        limit = self._limit[leaf]
        if limit is None or self._sizes[leaf] <= limit or leaf in self._splitting:
            return
        if time.monotonic() < self._not_before.get(leaf, (0.0, 0.0))[0]:
            return
        self._splitting[leaf] = self._splitter.submit(self._try_split, leaf, limit)

    def _try_split(self, leaf: int, limit: int) -> None:
        """Split a leaf if it is full; after a failure it is retried later."""
        failed = None
        try:
            with self._changing:
                self._settle_leaf(leaf)
                size = int(self.leaves.call(leaf, "__len__"))
                with self._lock:  # a repeated key stored nothing
                    self._sizes[leaf] = size
                if size > limit:
                    self._split(leaf)
        except Exception as error:
            failed = error
            pause = min(2 * self._not_before.get(leaf, (0.0, BACK_OFF[0] / 2))[1], BACK_OFF[1])
            self._not_before[leaf] = time.monotonic() + pause, pause
        finally:
            with self._lock:
                del self._splitting[leaf]
        if failed is not None:
            told = f"Leaf {leaf} could not be split, and goes on as it is: {failed}"
            if self._stopped is None:
                told += f" It is tried again in {pause:.0f} s."
            warnings.warn(told, StoreWarning, stacklevel=1)

    def _settle_leaf(self, leaf: int) -> None:
        """Wait until the leaf has learned its pending examples."""
        if wait(self._pending.of(leaf), splitting.ROOM).not_done:
            raise Unreachable(f"It has not learned what was sent to it in {splitting.ROOM:.0f} s.")

    def _split(self, leaf: int) -> None:
        """Split a leaf; see `split_leaf`."""
        try:
            made = split_leaf(self._place, self.leaves, self.routes, leaf, self._meta())
        except Undecided as error:
            self._stopped = error
            raise
        if made is None:  # all equal: retry at twice the number
            self._limit[leaf] = 2 * self._sizes[leaf]
            return
        routes, extents = made
        sizes = {child: size for child, (size, _) in extents.items()}
        new = min(sizes), max(sizes)
        with self._lock:
            whole = sum(sizes.values()) >= self._sizes[leaf]
            self._moved[leaf] = new
            self.routes = routes
            del self._sizes[leaf], self._limit[leaf]
            self._not_before.pop(leaf, None)
            self._pending.drop(leaf)
            self._sizes |= sizes
            self._limit |= dict.fromkeys(new, self.capacity)
            self._counts.split(leaf, extents)
        try:
            for child in new:
                self._read_keys(child)
                self._labels.put(child, self.leaves.call(child, "known_labels"))
            self._labels.drop(leaf)
            with self._lock:
                del self._moved[leaf]
            self._counts.save()
            self.leaves.retire(leaf, keep=not whole)
            if not whole:
                self._place.set_aside(leaf_folder(self.folder, leaf), UNREAD)
        except Exception as error:
            told = f"Leaf {leaf} has split; but: {error} The next owner clears up."
            warnings.warn(told, StoreWarning, stacklevel=1)
        with self._lock:
            for child in new:  # a lopsided split may leave a child still too large
                self._split_if_full(child)

    def forget(self, *, label: str) -> int:
        """Delete every example of a label, permanently, from every leaf; returns their number."""
        label = clean_label(label)
        with self._changing, self._lock:
            for future in self._pending.all():  # none may reach the copy later
                self._pending.wait(future)
            self._counts.save_nothing()  # they may only be too low, whenever this is cut short
            gone = sum(self._forgotten(leaf, label) for leaf in self._sizes)
            try:
                self._keys.clear()
                for leaf in self._sizes:
                    self._read_keys(leaf)
            except BaseException:  # keys missing in the index could be learned twice
                self._stopped = StoreError("The keys could not be read: open the tree again.")
                raise
            self._counts.save()
            if self._copy is not None:
                self._copy.forget(label)
            self._labels.forget(label)
            self._pending.restart_clocks(self._sizes)
        if self._place.has_aside():
            warnings.warn(
                f"{self.folder / ASIDE} has folders that the tree does not know, and they may "
                f"hold examples of {label!r}: delete them too.",
                StoreWarning,
                stacklevel=2,
            )
        return gone

    def _forgotten(self, leaf: int, label: str) -> int:
        """Forget a label in a leaf; returns the number of examples, also after a retry."""
        before, _ = self.leaves.call(leaf, "extent")
        self._counts.set(leaf, 0)  # until it is known
        self.leaves.call(leaf, "forget_label", label)
        after, _ = self.leaves.call(leaf, "extent")
        self._counts.set(leaf, after)
        self._sizes[leaf] = after
        return int(before - after)

    def consolidate(self, epochs: int = 10) -> None:
        """Train every leaf offline over its own memory, one at a time.

        Predictions and other leaves continue meanwhile; new examples of the leaf being trained
        wait. An interruption leaves every leaf as before or after its training.
        """
        with self._changing:  # so none splits
            for leaf in sorted(self._sizes):
                with self._occupied(leaf):
                    self.leaves.call(leaf, "consolidate", epochs)

    def snapshot(self, to: str | Path) -> int:
        """Copy the tree into a new folder, which every leaf can reach; returns how many leaves.

        Everything acknowledged before is included. Examples for the leaf being copied wait.
        """
        with self._changing, making(Path(to)) as part:  # so none splits
            for leaf in sorted(self._sizes):
                with self._occupied(leaf):
                    self.leaves.call(leaf, "save_pretrained", leaf_folder(part, leaf))
            finish(part, self.folder, self.routes, self._meta())
            return len(self._sizes)

    def verify(self) -> TreeReport:
        """Verify every leaf; examples for the leaf being verified wait.

        Also reports missing acknowledged examples, duplicate keys, and examples that the second
        copy lacks.
        """
        with self._changing:
            copy = None if self._copy is None else self._copy.address
            leaves, counts = sorted(self._sizes), self._place.counts()
            return checked(leaves, counts, self._check, copy=copy)

    def _check(self, leaf: int) -> tuple[Report, list[str]]:
        with self._occupied(leaf):
            found: tuple[Report, list[str]] = self.leaves.call(leaf, "checked")
            return found

    @contextmanager
    def _occupied(self, leaf: int) -> Iterator[None]:
        """Make new examples for a leaf wait, without considering it stuck."""
        done: Future[None] = Future()
        with self._lock:
            mine = self._splitting.setdefault(leaf, done) is done  # else they wait already
        try:
            yield
        finally:
            with self._lock:
                if mine:
                    del self._splitting[leaf]
                self._pending.restart_clocks([leaf])
            done.set_result(None)
            with self._lock:
                if leaf in self._sizes:
                    self._split_if_full(leaf)

    # ------------------------------------------------------------------------------ the rest

    def stats(self) -> dict[str, LabelStats]:
        """Statistics by label: examples of all leaves summed, the rest averaged by examples."""
        with self._changing:  # prevents splits; a leaf that hangs blocks no learning
            return pooled([self.leaves.call(leaf, "stats") for leaf in list(self._sizes)])

    def __len__(self) -> int:
        """Number of stored examples."""
        self.settle()
        with self._changing:
            return sum(int(self.leaves.call(leaf, "__len__")) for leaf in list(self._sizes))

    def check_lesson(self, lesson: Future[Learned]) -> None:
        """Raise `Unreachable` if the leaf of a pending `submit` is stuck."""
        self._pending.check_lesson(lesson)

    def settle(self) -> None:
        """Wait until all submitted examples are learned, and all full leaves are split.

        Raises `Unreachable` if a leaf is stuck.
        """
        while True:
            with self._lock:
                waiting: list[Future[Any]] = [*self._splitting.values(), *self._pending.all()]
            if not waiting:
                return
            for future in waiting:
                self._pending.wait(future)

    def health(self) -> list[Health]:
        """State of each leaf."""
        return self.leaves.health()

    def __repr__(self) -> str:
        """With the numbers of leaves and examples."""
        told = "closed" if self._closed else f"{len(self.routes.leaves())} leaves"
        name = self.backbone.spec.name
        return f"<{type(self).__name__} of {name!r} in {self.folder}: {told}>"

    def close(self) -> None:
        """Wait for pending examples, and close everything."""
        if self._closed:
            return
        whole = self._stopped is None
        try:
            self.settle()
        except Unreachable as error:  # it was never acknowledged
            whole = False
            warnings.warn(f"Closed with lessons on their way: {error}", StoreWarning, stacklevel=2)
        self._closed = True
        self._stopped = StoreError("The tree is closed: open it again.")
        self._splitter.shutdown()
        try:
            if whole:
                self._counts.save()
                for leaf in self._sizes:  # every key was claimed: nothing is to be read again
                    last = self.leaves.call(leaf, "keys_after", NEVER)[1]
                    self._keys.add(leaf, (), last)
        finally:
            if self._copy is not None:
                self._copy.close()
            self._keys.close()
            self.leaves.close()
            self._place.close()


def _meta(backbone: Backbone, settings: Settings) -> dict[str, str]:
    return {"fingerprint": backbone.spec.fingerprint, "settings": settings.to_json()}
