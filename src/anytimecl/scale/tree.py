"""A tree of learners: each leaf knows its own corner of the world, and splits when it is full.

An image goes down the tree to the leaf whose centre is nearer at every fork; that leaf learns it,
stores it, and answers for it. With one leaf this is `AnytimeClassifier`, bit for bit.
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone import load as load_backbone
from anytimecl.classifier import LabelStats
from anytimecl.closing import Closing
from anytimecl.codec import make_codec
from anytimecl.errors import LabelError, ModelError, StoreError
from anytimecl.images import ImageSource, load_image
from anytimecl.labels import clean_label, clean_labels
from anytimecl.prediction import predictions
from anytimecl.scale.answers import TreePrediction, gathered, mixed, original_only, pooled
from anytimecl.scale.leaf import Lesson, image_vectors
from anytimecl.scale.leaves import Health, Here, Leaves, leaf_folder
from anytimecl.scale.routes import Routes
from anytimecl.settings import Settings
from anytimecl.student import Learned

FILE = "tree.safetensors"
PENDING = 64  # lessons on their way to one leaf before a teacher waits
NEARNESS = 0.05  # leaves so much farther away weigh 1/e
PATIENCE = 10.0  # seconds that a leaf's answer is waited for
MakeLeaves = Callable[[Path, Backbone, Settings], Leaves]


class TreeClassifier(Closing):
    """`AnytimeClassifier` over as many leaves as its examples need.

    `capacity` is how many examples a leaf holds before it becomes two; None: there is one leaf.
    An image asks the `near` leaves that are nearest. Ids of examples are those of their leaf, so
    they change when it splits; keys do not. So `forget` takes a label only; and there is no
    `predict_proba`, `rebuild` or `save_pretrained`: the folder is all there is.
    """

    def __init__(
        self,
        folder: Path,
        backbone: Backbone,
        settings: Settings,
        routes: Routes,
        leaves: Leaves,
        *,
        capacity: int | None = None,
        near: int = 1,
        patience: float = PATIENCE,
    ) -> None:
        self.folder, self.backbone, self.settings = folder, backbone, settings
        self.capacity, self.near, self.patience = capacity, near, patience
        self.routes, self.leaves = routes, leaves
        self.codec = make_codec(settings.codec, backbone.spec, backbone.tail)
        self._lock = threading.RLock()  # one at a time decides where an example goes
        self._waiting: dict[int, deque[Future[Learned]]] = defaultdict(deque)
        leaves.start(routes.leaves())
        self._sizes = {leaf: int(leaves.call(leaf, "__len__")) for leaf in routes.leaves()}
        self._limit: dict[int, int | None] = dict.fromkeys(self._sizes, capacity)
        self._labels: dict[str, None] = {}
        for leaf in routes.leaves():
            self._labels |= dict.fromkeys(leaves.call(leaf, "known_labels"))

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        model: str | Path | Backbone = "embedded",
        settings: Settings | None = None,
        device: str = "cpu",
        leaves: MakeLeaves = Here,
        **options: Any,
    ) -> Self:
        """Create the tree in `folder`, or resume it; `options` are `capacity` and `near`."""
        backbone = model if isinstance(model, Backbone) else load_backbone(model, device=device)
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        if (place / FILE).exists():
            routes, told = Routes.load(place / FILE)
            if told["fingerprint"] != backbone.spec.fingerprint:
                raise StoreError(
                    f"The tree in {place} was made with another model than {backbone.spec.name}."
                )
            settings = Settings.from_json(told["settings"]).agreed(settings)
        else:
            routes, settings = Routes.single(backbone.spec.dim), settings or Settings()
            if make_codec(settings.codec, backbone.spec, backbone.tail).needs_image:
                raise ModelError("A tree sends features around, and this codec keeps images.")
            routes.save(place / FILE, _meta(backbone, settings))
        _sweep(place, routes)
        made = leaves(place, backbone, settings)
        return cls(place, backbone, settings, routes, made, **options)

    # ------------------------------------------------------------------------------- learning

    def learn_one(
        self,
        image: ImageSource,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """Learn one labelled image; it is durable when this returns."""
        record = self.codec.encode(self.encode([image])[0])
        return self.submit(record, label, candidates=candidates, key=key).result()

    def learn_tokens(
        self,
        tokens: Tensor,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for the tokens [token, width] of an image that `encode` has seen already."""
        record = self.codec.encode(tokens)
        return self.submit(record, label, candidates=candidates, key=key).result()

    def learn_record(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere."""
        return self.submit(record, label, candidates=candidates, key=key).result()

    def learn_many(
        self, examples: Iterable[tuple[ImageSource, str] | tuple[ImageSource, str, str | None]]
    ) -> int:
        """`learn_one` for each (image, label) or (image, label, key); leaves work side by side."""
        sent = []
        for image, label, *rest in examples:
            record = self.codec.encode(self.encode([image])[0])
            sent.append(self.submit(record, label, key=rest[0] if rest else None))
        return sum(1 for future in sent if future.result())

    def submit(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Future[Learned]:
        """Send a record to its leaf. It counts once the result is there; until then it may wait.

        With too much on its way to that leaf, this itself waits.
        """
        label = clean_label(label)
        chosen = None if candidates is None else tuple(clean_labels(candidates))
        if chosen is not None and label not in chosen:
            raise LabelError(f"The label {label!r} is not among its candidates.")
        tokens = self.codec.decode([record], self.backbone.device)  # refuses what is damaged
        vector = image_vectors(self.backbone, tokens)[0].cpu()
        while True:
            with self._lock:
                leaf = self.routes.leaf_of(vector)
                queue = self._waiting[leaf]
                while queue and queue[0].done():
                    queue.popleft()
                if len(queue) < PENDING:
                    future = self.leaves.teach(leaf, Lesson(record, label, chosen, key))
                    queue.append(future)
                    self._labels[label] = None
                    self._sizes[leaf] += 1
                    self._split_if_full(leaf)
                    return future
                oldest = queue[0]
            oldest.exception()  # waits for it; its own caller sees what went wrong

    def _split_if_full(self, leaf: int) -> None:
        limit = self._limit[leaf]
        if limit is None or self._sizes[leaf] <= limit:
            return
        for future in self._waiting.pop(leaf, ()):
            future.exception()
        self._sizes[leaf] = int(self.leaves.call(leaf, "__len__"))  # a repeated key stored nothing
        if self._sizes[leaf] > limit:
            self._split(leaf)

    def _split(self, leaf: int) -> None:
        """Two leaves for one. They are there in full before the tree knows of them."""
        new = self.routes.next_leaf, self.routes.next_leaf + 1
        folders = leaf_folder(self.folder, new[0]), leaf_folder(self.folder, new[1])
        centres = self.leaves.call(leaf, "divide", folders)
        if centres is None:  # all alike: ask again when there are twice as many
            self._limit[leaf] = 2 * self._sizes[leaf]
            return
        routes, _ = self.routes.split(leaf, centres)
        routes.save(self.folder / FILE, _meta(self.backbone, self.settings))
        self.leaves.start(new)
        for child in new:
            self._sizes[child] = int(self.leaves.call(child, "__len__"))
            self._limit[child] = self.capacity
        del self._sizes[leaf], self._limit[leaf]
        self.routes = routes
        self.leaves.retire(leaf)
        for child in new:  # a lopsided split may leave a child still too large
            self._split_if_full(child)

    def forget(self, *, label: str) -> int:
        """Remove every example of a label, for good, from every leaf; returns how many."""
        label = clean_label(label)
        with self._lock:
            gone = {
                leaf: int(self.leaves.call(leaf, "forget_label", label)) for leaf in self._sizes
            }
            for leaf, count in gone.items():
                self._sizes[leaf] -= count
            self._labels.pop(label, None)
        return sum(gone.values())

    def consolidate(self, epochs: int = 10) -> None:
        """Train every leaf offline over its own memory, one after the other.

        Predictions go on; what is taught meanwhile waits. An interruption leaves each leaf as it
        was before or after its turn.
        """
        with self._lock:  # so none splits
            for leaf in self._sizes:
                self.leaves.call(leaf, "consolidate", epochs)

    # ----------------------------------------------------------------------------- prediction

    def encode(self, images: Sequence[ImageSource]) -> Tensor:
        """The frozen trunk's tokens [image, token, width]."""
        return self.backbone.encode([load_image(image) for image in images])

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = 1.0
    ) -> Any:
        """A `TreePrediction` for one image, a list of them for a list."""
        many = isinstance(images, list | tuple)
        tokens = self.encode(images if many else [images])
        found = self.predict_tokens(tokens, labels, threshold=threshold)
        return found if many else found[0]

    def predict_tokens(
        self, tokens: Tensor, labels: Sequence[str] | None = None, *, threshold: float = 1.0
    ) -> list[TreePrediction]:
        """`predict` for images that `encode` has seen already."""
        if labels is None and not self.labels:
            raise LabelError("Nothing is learned yet: say which labels to choose from.")
        asked = clean_labels(self.labels if labels is None else labels)
        vectors = image_vectors(self.backbone, tokens).cpu()
        while True:
            found = self._asked_leaves(tokens, vectors, asked, threshold)
            there = set(self.routes.leaves())
            if all(set(one.missing) <= there for one in found):
                return found  # else a leaf split meanwhile, and its children are asked

    def _asked_leaves(
        self, tokens: Tensor, vectors: Tensor, asked: list[str], threshold: float
    ) -> list[TreePrediction]:
        routes = self.routes
        near = [dict(routes.near(vector, self.near)) for vector in vectors]
        embedded = self.backbone.embed_labels(asked, self.settings.templates)
        # Images with the same leaves are asked about together.
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for image, its in enumerate(near):
            groups[tuple(its)].append(image)
        waiting = {
            leaves: {
                leaf: self.leaves.ask(leaf, tokens[images], asked, embedded) for leaf in leaves
            }
            for leaves, images in groups.items()
        }
        found: dict[int, TreePrediction] = {}
        for leaves, images in groups.items():
            answers, missing = gathered(waiting[leaves], self.patience)
            if answers:
                distances = torch.tensor([[near[i][leaf] for leaf in answers] for i in images])
                answer = mixed(list(answers.values()), (-distances / NEARNESS).softmax(1))
            else:
                answer = original_only(self.backbone, tokens[images], embedded)
            told = predictions(asked, answer.opinions, answer.alpha, answer.values, threshold)
            for image, one in zip(images, told, strict=True):
                found[image] = TreePrediction(**vars(one), leaves=tuple(answers), missing=missing)
        return [found[image] for image in range(len(tokens))]

    # ------------------------------------------------------------------------------ the rest

    @property
    def labels(self) -> list[str]:
        """Every label learned, in order of first appearance."""
        return list(self._labels)

    def stats(self) -> dict[str, LabelStats]:
        """Per label: examples of all leaves, and the means of what they know by their examples."""
        with self._lock:
            return pooled([self.leaves.call(leaf, "stats") for leaf in self._sizes])

    def __len__(self) -> int:
        """Examples stored."""
        with self._lock:
            self.settle()
            return sum(int(self.leaves.call(leaf, "__len__")) for leaf in self._sizes)

    def settle(self) -> None:
        """Wait until all that was submitted is learned."""
        with self._lock:
            for queue in self._waiting.values():
                while queue:
                    queue.popleft().exception()

    def health(self) -> list[Health]:
        """How each leaf is."""
        return self.leaves.health()

    def close(self) -> None:
        """Wait for what is on its way, and let go of everything."""
        self.settle()
        self.leaves.close()


def _meta(backbone: Backbone, settings: Settings) -> dict[str, str]:
    return {"fingerprint": backbone.spec.fingerprint, "settings": settings.to_json()}


def _sweep(folder: Path, routes: Routes) -> None:
    """Remove leaves that the tree does not know: of a split that a crash cut short."""
    known = {leaf_folder(folder, leaf) for leaf in routes.leaves()}
    for place in folder.glob("leaf-*"):
        if place not in known:
            shutil.rmtree(place, ignore_errors=True)
