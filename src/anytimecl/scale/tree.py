"""A tree of classifiers: each leaf learns a part of the embedding space, and splits when full.

An image is routed down the tree to the leaf with the nearer centre at every fork; that leaf learns,
stores and predicts it. With one leaf this is `AnytimeClassifier`, bit for bit.
"""

from __future__ import annotations

import json
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from anytimecl.backbone import Backbone
from anytimecl.backbone import load as load_backbone
from anytimecl.classifier import LabelStats
from anytimecl.closing import Closing
from anytimecl.codec import make_codec
from anytimecl.errors import StoreError
from anytimecl.labels import clean_label
from anytimecl.memory import Report, StoreWarning
from anytimecl.registry import Choice
from anytimecl.scale.answers import pooled
from anytimecl.scale.copy_places import NO_COPY, settled
from anytimecl.scale.counts import Counts
from anytimecl.scale.homes import LabelHomes
from anytimecl.scale.keys import KeyIndex, OneAtATime
from anytimecl.scale.leaf import LeafLesson
from anytimecl.scale.leaves import Health, Here, Leaves, Unreachable, leaf_folder
from anytimecl.scale.pending import Lessons, Silence
from anytimecl.scale.routes import Routes
from anytimecl.scale.second_copy import SecondCopy
from anytimecl.scale.snapshots import TreeReport, checked, finish, making
from anytimecl.scale.tree_folder import ASIDE, COPIED, COPY, FILE, IDENTITY, TreeFolder
from anytimecl.scale.tree_learning import TreeLearning
from anytimecl.scale.tree_opening import check_loss, prepared
from anytimecl.scale.tree_predicting import CLOSED
from anytimecl.settings import Settings

__all__ = ["FILE", "TreeClassifier"]
PATIENCE = 2.0  # seconds that a leaf's answer is waited for, and longer for long questions
STUCK = 30.0  # seconds without progress after which a leaf with pending examples is stuck
NEVER = 2**62  # an event that no memory reaches
MakeLeaves = Callable[[Path, Backbone, Settings], Leaves]


class TreeClassifier(TreeLearning, Closing):
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
        if capacity is not None and capacity < 1:
            raise ValueError(f"A leaf has a capacity of at least one example, not {capacity}.")
        if near < 1:
            raise ValueError(f"At least one leaf is asked about an image, not {near}.")
        self.folder, self.backbone, self.settings = place.path, backbone, settings
        self.capacity, self.near = capacity, near
        self.patience = patience
        self.routes, self.leaves = routes, leaves
        self.codec = make_codec(settings.codec, backbone.spec, backbone.tail)
        self._place, self._keys = place, keys
        self._lock, self._changing = threading.RLock(), threading.RLock()
        self._pending, self._silence = Lessons(stuck), Silence()
        self._teaching = OneAtATime()
        self._splitter = ThreadPoolExecutor(1, "anytimecl-split")
        self._splitting, self._moved, self._not_before = {}, {}, {}
        self._stopped, self._closed = None, False
        extents = {leaf: leaves.call(leaf, "extent") for leaf in routes.leaves()}
        self._sizes = {leaf: size for leaf, (size, _) in extents.items()}
        self._counts = Counts(place, extents)
        self._limit = dict.fromkeys(self._sizes, capacity)
        self._copy, self._last_asked = None, None
        self._identity = place.noted(IDENTITY) or uuid.uuid4().hex
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
        told = {**self._model_meta(), "spec": json.dumps(self.backbone.spec.to_dict())}
        copy = SecondCopy(address, self._identity, self._place.owner, told, noted=noted)
        try:
            for some in () if copy.whole else self._all_lessons():
                for written in [copy.put(lesson) for lesson in some]:
                    written.result()
            copy.declare_whole()
            self._copy = copy
            self._place.save(self.routes, self._meta())  # from now on it is whole
        except BaseException:
            self._copy = None
            copy.close()
            raise

    def _all_lessons(self) -> Iterator[list[LeafLesson]]:
        """Every readable example, some at a time."""
        for leaf in sorted(self._sizes):
            before, last = -1, 0
            while before < last:  # those that cannot be read are not all that there are
                before, (some, last) = last, self.leaves.call(leaf, "lessons_after", last)
                yield some

    def _model_meta(self) -> dict[str, str]:
        return {
            "fingerprint": self.backbone.spec.fingerprint,
            "settings": self.settings.to_json(),
        }

    def _meta(self) -> dict[str, str]:
        """Metadata of the routes."""
        told = {**self._model_meta(), IDENTITY: self._identity}
        if self._copy is None:
            return told
        return {**told, COPY: self._copy.address, COPIED: str(self._place.owner)}

    @contextmanager
    def _unsplit(self) -> Iterator[None]:
        """Let no leaf split, and no other such call begin; StoreError if the tree is closed."""
        with self._changing:
            self._check_open()
            yield

    # --------------------------------------------------------------------------- all its leaves

    def forget(self, *, label: str) -> int:
        """Delete every example of a label, permanently, from every leaf; returns their number."""
        label = clean_label(label)
        with self._unsplit(), self._lock:
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
            self._labels.forget(label)
            self._pending.restart_clocks(self._sizes)
            if self._copy is not None:
                self._copy.forget(label)
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
        with self._unsplit():
            for leaf in sorted(self._sizes):
                with self._occupied(leaf):
                    self.leaves.call(leaf, "consolidate", epochs)

    def snapshot(self, to: str | Path) -> int:
        """Copy the tree into a new folder, which every leaf can reach; returns how many leaves.

        Everything acknowledged before is included. Examples for the leaf being copied wait.
        """
        with self._unsplit(), making(Path(to)) as part:
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
        with self._unsplit():
            copy = None if self._copy is None else self._copy.address
            leaves, counts = sorted(self._sizes), self._place.counts()
            return checked(leaves, counts, self._check, copy=copy)

    def _check(self, leaf: int) -> tuple[Report, list[str]]:
        with self._occupied(leaf):
            found: tuple[Report, list[str]] = self.leaves.call(leaf, "checked")
            return found

    # ------------------------------------------------------------------------------ the rest

    def stats(self) -> dict[str, LabelStats]:
        """Statistics by label: examples of all leaves summed, the rest averaged by examples."""
        with self._unsplit():  # a leaf that hangs blocks no learning
            return pooled([self.leaves.call(leaf, "stats") for leaf in self._sizes])

    def __len__(self) -> int:
        """Number of stored examples."""
        self.settle()
        with self._unsplit():
            return sum(int(self.leaves.call(leaf, "__len__")) for leaf in self._sizes)

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
        hangs = False
        try:
            self.settle()
        except Unreachable as error:  # it was never acknowledged
            hangs = True
            warnings.warn(f"Closed with lessons on their way: {error}", StoreWarning, stacklevel=2)
        whole = not hangs and self._stopped is None
        with self._lock:  # so that no example is half sent
            self._closed, self._stopped = True, StoreError(CLOSED)
        self._splitter.shutdown()
        with ExitStack() as closing:  # each of them, whatever becomes of the others
            for each in (self._place, self.leaves, self._keys, self._copy):
                if each is not None:
                    closing.callback(each.close)
            if whole:
                self._counts.save()
                if not self._moved:  # every key is indexed: nothing is to be read again
                    for leaf in self._sizes:
                        last = self.leaves.call(leaf, "keys_after", NEVER)[1]
                        self._keys.add(leaf, (), last)
