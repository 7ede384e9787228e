"""Assisted labelling by active learning: propose the unlabelled image to label next.

Only closed-form experts are used, on one embedding per image, which is cheap enough for a hundred
thousand images. Two thousand of them are scored for each query (`choosing.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from anytimecl.errors import ImageError, StoreError
from anytimecl.images import ImageRef, ImageSource, iter_images, load_image
from anytimecl.inbox._known import knowing
from anytimecl.inbox._state import KNOWN, State
from anytimecl.labels import clean_label, clean_labels
from anytimecl.listing import Exported, export_labels
from anytimecl.memory import FileKey
from anytimecl.memory.acts import last_acts
from anytimecl.memory.contract import Progress
from anytimecl.predicting import digest_of
from anytimecl.tail import images_of
from anytimecl.thumbnails import thumbnail_of

if TYPE_CHECKING:
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.trainer import Learned

__all__ = ["Exported", "Inbox", "Item", "Proposal", "export_labels", "file_key", "knowing"]

FIRST = 64  # images encoded before the first query
AHEAD = 4  # further images encoded with each query
LOOKED = 2048  # images scored for each query, others every time
PROPOSED = 5  # labels proposed with a query
SURE = 0.95  # default probability for `Inbox.sure`


class Proposal(NamedTuple):
    """A label and its probability."""

    label: str
    probability: float


class Item(NamedTuple):
    """An image of the inbox, with proposed labels, the most probable first."""

    number: int
    source: str
    proposals: tuple[Proposal, ...]


class Inbox:
    """A queue of unlabelled images, for a classifier that learns from every answer.

    Parameters
    ----------
    clf
        The classifier.
    sources
        A folder or zip, with all the images below it, or any images.
    labels
        Labels that may be proposed, besides those in the memory.

    Notes
    -----
    With a memory on disk, the inbox stores which images were answered and skipped, and the
    embeddings of encoded images until they are answered: another inbox over the same images
    continues from there. Images in the memory, under any label, are not queried; those whose
    example was undone or forgotten are queried again.
    """

    def __init__(
        self,
        clf: AnytimeClassifier,
        sources: str | os.PathLike[str] | Iterable[ImageSource],
        labels: Sequence[str] | None = None,
    ) -> None:
        self.clf = clf
        self.failures: dict[str, str] = {}  # name -> why it cannot be read
        self._wanted = clean_labels(labels) if labels else []
        self._images = _images(sources)
        self._names = [_name(image, number) for number, image in enumerate(self._images)]
        over = os.path.abspath(sources) if isinstance(sources, str | os.PathLike) else self._names
        self._keys = [_known_by(*each) for each in zip(self._images, self._names, strict=True)]
        keys = dict(zip(self._names, self._keys, strict=True))
        self._state = State(clf.memory.path, over, keys, clf.backbone.spec)
        self._ask_again_what_was_taken_back()
        order = list(range(len(self._images)))
        random.Random(clf.settings.seed).shuffle(order)
        self._order = order  # in which they are encoded
        self._turn = 0
        self._working = threading.RLock()
        self._tokens: tuple[int, Tensor] | None = None  # of the last query

    def __len__(self) -> int:
        """Number of images still to be labelled."""
        return sum(
            key not in self._state.done and name not in self.failures
            for key, name in zip(self._keys, self._names, strict=True)
        )

    @property
    def ready(self) -> int:
        """Number of encoded images, which can be queried."""
        return len(self._state.vectors)

    def prepare(self, count: int | None = None, progress: Progress | None = None) -> int:
        """Encode `count` more images, or all; returns how many are left.

        May run in another thread while images are labelled.
        """
        left = [n for n in self._order if self._unseen(n)]
        wanted = left if count is None else left[:count]
        for done, number in enumerate(wanted, 1):
            with self._working:
                if self._unseen(number):
                    self._look(number)
            if progress is not None:
                progress(done, len(wanted))
        return len(left) - len(wanted)

    def next(self) -> Item | None:
        """The image to label next; None if all are answered or skipped."""
        with self._working:
            while True:
                self.prepare(max(AHEAD, FIRST - self.ready))
                chosen = self._choose()
                if chosen is None:
                    if any(self._unseen(n) for n in self._order):
                        continue
                    return None
                try:
                    return self._item(chosen)
                except ImageError as error:  # readable before, not now
                    self.failures[self._names[chosen]] = str(error)

    def answer(self, item: Item, label: str) -> Learned:
        """Learn an image of the inbox with this label."""
        with self._working:
            image, clf = self._images[item.number], self.clf
            given, key = image, None
            if isinstance(image, ImageRef):
                given = image.read()
                key = file_key(hashlib.sha256(given).digest(), label)
            if (
                self._tokens
                and self._tokens[0] == item.number
                and clf.settings.name_of("codec") != "image"
            ):
                small = thumbnail_of(self.load(item)) if clf.memory.thumbnails else None
                learned = clf.learn_tokens(
                    self._tokens[1], label, key=key, source=item.source, thumbnail=small
                )
            else:
                learned = clf.learn_one(given, label, key=key, source=item.source)
            self._state.note(self._keys[item.number], "answer", learned.id)
            return learned

    def skip(self, item: Item) -> None:
        """Do not query this image again."""
        with self._working:
            self._state.note(self._keys[item.number], "skip")

    def undo(self) -> Item:
        """Undo the last answer or skip of this inbox; the image may be queried again."""
        with self._working:
            last = self._state.last()
            if last is None:
                raise StoreError("Nothing was answered or skipped yet: there is nothing to undo.")
            key, example = last
            if key not in self._keys:
                raise StoreError(
                    "The image that was answered or skipped last is gone, or changed since: it "
                    "cannot be asked about again. Use relabel, undo or forget instead."
                )
            if example is not None:
                self._take_back(example)
            self._state.note(key, "undo")
            return self._item(self._keys.index(key))

    def sure(self, threshold: float = SURE) -> list[Item]:
        """Images whose first proposal has this probability, highest first; learns nothing."""
        with self._working:
            left = self._open()
            if not left:
                return []
            with knowing(self.clf, self._wanted) as known:
                names = known.names
                if not names:
                    return []
                said = known.say(self._stacked(left)).scores
        best, at = said[:, : len(names)].softmax(1).max(1)
        found = [
            Item(number, self._names[number], (Proposal(names[i], probability),))
            for number, i, probability in zip(left, at.tolist(), best.tolist(), strict=True)
            if probability >= threshold
        ]
        return sorted(found, key=lambda item: -item.proposals[0].probability)

    def load(self, item: Item) -> Image.Image:
        """Load the image."""
        return load_image(self._given(item.number))

    def _given(self, number: int) -> ImageSource:
        """An image, read from its folder or zip."""
        image: ImageSource | ImageRef = self._images[number]
        return image.load() if isinstance(image, ImageRef) else image

    def _take_back(self, example: int) -> None:
        with self.clf.memory.reading():
            [act] = last_acts(self.clf.memory, 1)
        if example not in (act.number, *act.data.get("examples", ())):
            raise StoreError(
                "Something else was taught since, which would be undone first: use relabel or "
                "forget instead."
            )
        self.clf.undo()

    def _ask_again_what_was_taken_back(self) -> None:
        """Reopen images whose example was undone or forgotten outside the inbox."""
        answered = {key: example for key, example in self._state.done.items() if example}
        stored = {example for example, _ in self.clf.memory.ids()} if answered else set()
        for key, example in answered.items():
            if example not in stored:
                self._state.note(key, "undo")

    def _unseen(self, number: int) -> bool:
        key, state = self._keys[number], self._state
        return not (
            key in state.vectors or key in state.done or self._names[number] in self.failures
        )

    def _open(self) -> list[int]:
        """Images that are encoded, readable, and neither answered nor skipped."""
        vectors, names = self._state.vectors, self._names
        there = (number for number in self._order if self._keys[number] in vectors)
        return [number for number in there if names[number] not in self.failures]

    def _look(self, number: int) -> None:
        name = self._names[number]
        try:
            tokens = self.clf.encode([self._given(number)])
        except ImageError as error:
            self.failures[name] = str(error)
            return
        if (known := self.clf.memory.find_content(digest_of(tokens[0]))) is not None:
            self._state.note(self._keys[number], KNOWN, known[0])
            return
        backbone = self.clf.backbone
        with torch.no_grad():
            vector = images_of(backbone.tail, backbone.spec.tail, tokens)[0]
        self._state.add(self._keys[number], vector.half().cpu().numpy())

    def _choose(self) -> int | None:
        left = self._open()
        if not left:
            return None
        start = self._turn % len(left)
        self._turn += LOOKED
        looked = (left + left)[start : start + min(LOOKED, len(left))]
        with knowing(self.clf, self._wanted) as known:
            asked = known.say(self._stacked(looked))
            return looked[known.best(asked, random.Random(self._turn).random())]

    def _stacked(self, numbers: Sequence[int]) -> Tensor:
        vectors = self._state.vectors
        return torch.from_numpy(np.stack([vectors[self._keys[n]] for n in numbers])).float()

    def _item(self, number: int) -> Item:
        """An item with the proposals of the whole model."""
        clf = self.clf
        tokens = clf.encode([self._given(number)])
        self._tokens = number, tokens[0]
        labels = list(dict.fromkeys([*clf.labels, *self._wanted]))
        proposals: list[Proposal] = []
        if labels:
            [found] = clf.predict_tokens(tokens, labels)
            likely = sorted(found.probabilities.items(), key=lambda each: -each[1])[:PROPOSED]
            proposals = [Proposal(*each) for each in likely]
        return Item(number, self._names[number], tuple(proposals))


def _images(sources: Any) -> list[Any]:
    if isinstance(sources, str | os.PathLike):
        return list(iter_images(sources))
    return list(sources)


def _name(image: Any, number: int) -> str:
    if isinstance(image, ImageRef):
        return str(image.root / image.name)
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}"


def _known_by(image: Any, name: str) -> str:
    """Digest of name, size and time of modification (of the zip, for its members).

    Of an image that is no file, its pixels: the name is only its place in a list.
    """
    about: list[Any] = [name, 0, 0]
    if isinstance(image, ImageRef | str | os.PathLike):
        file = Path(name)
        if isinstance(image, ImageRef) and image.member is not None:
            file = image.root
        with suppress(OSError, ValueError):
            status = file.stat()
            about = [name, status.st_size, status.st_mtime_ns]
    else:
        with suppress(ImageError):
            pixels = load_image(image)
            about = [name, *pixels.size, hashlib.sha256(pixels.tobytes()).hexdigest()]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]


def file_key(digest: bytes, label: str) -> FileKey:
    """The key of an image file, from the SHA-256 of its content, and its label.

    The same in all commands, so that each skips what another learned.
    """
    return FileKey(hashlib.sha256(digest + clean_label(label).encode()).hexdigest())
