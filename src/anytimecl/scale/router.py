"""A tree on a cluster that any program can reach: the router as an actor, and its caller.

Encoders make records of images, and the router knows the way to the leaves: it holds no thread for
a lesson that is on its way, so that those who wait for one leaf hold up nobody else.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch

from anytimecl.classifier import LabelStats
from anytimecl.errors import AnytimeError
from anytimecl.images import ImageSource, images_given, load_image
from anytimecl.memory.database import Durability
from anytimecl.prediction import THRESHOLD
from anytimecl.scale.answers import TreePrediction
from anytimecl.scale.leaf_host import NAMESPACE, connect_ray, died_of, import_ray, plainly
from anytimecl.scale.leaves import Health, Unreachable
from anytimecl.scale.on_ray import OnRay, on_ray
from anytimecl.scale.pending import MustWait
from anytimecl.scale.ray_metrics import RouterMetrics
from anytimecl.scale.record_host import EncodedImage, Looked, RecordMaker, encoders_on
from anytimecl.scale.second_copy import settled
from anytimecl.scale.snapshots import TreeReport
from anytimecl.scale.tree import TreeClassifier
from anytimecl.scale.tree_folder import TreeInUse
from anytimecl.trainer import Learned

T = TypeVar("T")
NAME = "router"
TOGETHER = 32  # images that travel in one call
AGAIN_FOR, PAUSE = 120.0, 0.5  # seconds that a router that is gone is waited for, and between looks
SOON = 60.0  # seconds after which whoever starts a tree hears what it may lack
LEFT_FOR = 600.0  # seconds that a router that is started again waits until it has the tree
# Calls of a kind that the router works on side by side; what waits for a leaf takes no thread.
AT_ONCE = {"learn": 1000, "ask": 1000, "control": 100}
THREADS = {"learn": 128, "ask": 64, "control": 4, "encode": 1}


class AlreadyUp(AnytimeError):
    """A tree runs on the cluster."""


def _opened(folder: str, *, accept_loss: bool, **options: Any) -> TreeClassifier:
    """The tree. A router that is started again waits for what is left of the one before it.

    Its lock may outlive it for a while, on a disk of many nodes; and an actor whose making fails is
    never started again. A loss was accepted once: what is missing since is an error.
    """
    end = time.monotonic() + LEFT_FOR
    accept_loss = accept_loss and not _started_again()
    while True:
        try:
            return TreeClassifier.open(folder, accept_loss=accept_loss, **options)
        except (TreeInUse, Unreachable):
            if time.monotonic() > end or not _started_again():
                raise
        time.sleep(PAUSE)


def _started_again() -> bool:
    return bool(import_ray().get_runtime_context().was_current_actor_reconstructed)


class RouterHost:
    """What runs in the router's actor."""

    def __init__(
        self,
        folder: str,
        model: str,
        capacity: int | None,
        near: int,
        cpus: float,
        durability: Durability = "full",
        accept_loss: bool = False,
        copy_to: str | None = None,
        encoders: int = 0,
    ) -> None:
        self._tree = tree = _opened(
            folder,
            model=model,
            capacity=capacity,
            near=near,
            leaves=on_ray(cpus=cpus, durability=durability),
            accept_loss=accept_loss,
            copy_to=copy_to,
        )
        self._pools = {kind: ThreadPoolExecutor(n, kind) for kind, n in THREADS.items()}
        self._metrics = RouterMetrics()
        self._maker = RecordMaker(tree.backbone, tree.settings)
        told = model, tree.backbone.spec.fingerprint, tree.settings.to_json()
        self._encoders = encoders_on(import_ray(), encoders, cpus, *told)
        self._starting = {each.ready.remote(): each for each in self._encoders}

    async def encoders(self) -> list[Any]:
        """Those that have their model; none: whoever has images sends them to the router."""
        if self._starting:
            waited = import_ray().wait
            done, _ = waited(list(self._starting), num_returns=len(self._starting), timeout=0)
            for ref in done:
                del self._starting[ref]
        return [each for each in self._encoders if each not in self._starting.values()]

    async def encoded(self, images: list[Any]) -> list[EncodedImage]:
        """What encoders would do."""
        return await self._in("encode", lambda: self._maker.encoded(images))

    async def located(self, record: bytes) -> EncodedImage:
        """What encoders would do."""
        return await self._in("encode", lambda: self._maker.located(record))

    async def looked(self, images: list[Any]) -> Looked:
        """What encoders would do."""
        return await self._in("encode", lambda: self._maker.looked(images))

    async def learn_all(
        self, lessons: list[tuple[EncodedImage, str, Sequence[str] | None, str]]
    ) -> list[Learned]:
        """Images with label, candidates and key."""
        with self._metrics.timed("lesson", len(lessons)):
            sent = [await self._submitted(lesson) for lesson in lessons]
            for future in sent:
                await self._done(future)
            return [future.result() for future in sent]

    async def _submitted(
        self, lesson: tuple[EncodedImage, str, Sequence[str] | None, str]
    ) -> Future[Learned]:
        """On its way. Until it may be, it waits here, without a thread."""
        while True:
            try:
                return await self._in("learn", lambda: self._sent(*lesson))
            except MustWait as error:
                await self._done(error.first)

    def _sent(
        self, image: EncodedImage, label: str, candidates: Sequence[str] | None, key: str
    ) -> Future[Learned]:
        return self._tree.submit(
            image.record,
            label,
            candidates=candidates,
            key=key,
            content=image.content,
            vector=torch.tensor(image.vector),
            may_wait=False,
        )

    async def _done(self, future: Future[Any]) -> None:
        """Until a lesson or a split is done, whatever came of it; an error if its leaf is stuck."""
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 1.0)
            if not over.is_set():
                self._tree.check_lesson(future)

    async def predict(self, looked: Looked, labels: Any, threshold: float) -> list[TreePrediction]:
        """As the tree does."""
        tokens, vectors = torch.tensor(looked.tokens), torch.tensor(looked.vectors)

        def answer() -> list[TreePrediction]:
            return self._tree.predict_tokens(tokens, labels, threshold=threshold, vectors=vectors)

        with self._metrics.timed("question", len(tokens)):
            return await self._in("ask", answer)

    async def forget(self, label: str) -> int:
        """As the tree does."""
        return await self._in("control", lambda: self._tree.forget(label=label))

    async def consolidate(self, epochs: int) -> None:
        """As the tree does."""
        await self._in("control", lambda: self._tree.consolidate(epochs))

    async def snapshot(self, to: str) -> int:
        """As the tree does."""
        return await self._in("control", lambda: self._tree.snapshot(to))

    async def verify(self) -> TreeReport:
        """As the tree does."""
        return await self._in("control", self._tree.verify)

    async def stats(self) -> dict[str, LabelStats]:
        """As the tree does."""
        return await self._in("control", self._tree.stats)

    async def labels(self) -> list[str]:
        """As the tree does."""
        return self._tree.labels

    async def size(self) -> int:
        """Examples stored."""
        return await self._in("control", lambda: len(self._tree))

    async def fingerprint(self) -> str:
        """Of the model: an edge must have the same."""
        return self._tree.backbone.spec.fingerprint

    async def health(self) -> list[Health]:
        """As the tree does."""
        found = await self._in("ask", self._tree.health)
        self._metrics.tell(found)
        return found

    async def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node."""
        leaves = self._tree.leaves
        assert isinstance(leaves, OnRay)
        await self._in("control", lambda: leaves.migrate(leaf, node))

    async def rebalance(self) -> dict[int, str]:
        """Move leaves to nodes that have fewer."""
        leaves = self._tree.leaves
        assert isinstance(leaves, OnRay)
        return await self._in("control", leaves.rebalance)

    async def close(self) -> None:
        """Let every leaf write its checkpoint and go."""
        await self._in("ask", self._tree.close)

    async def _in(self, kind: str, work: Callable[[], T]) -> T:
        """In a thread of that kind: whoever may have to wait leaves the event loop here."""
        return await asyncio.get_running_loop().run_in_executor(self._pools[kind], work)


class ClusterClassifier:
    """A tree on a cluster, with the calls of `TreeClassifier` for images and records."""

    def __init__(self, actor: Any) -> None:
        self._ray, self._actor = import_ray(), actor
        self._ended = False
        self._encoders: list[Any] = []
        self._turn = itertools.count()

    def _call(self, kind: str, method: str, *args: Any, **options: Any) -> Any:
        """What the router says; while Ray starts it again, for a while, it is asked again.

        So whatever is asked must do no harm the second time: lessons have keys.
        """
        end = time.monotonic() + AGAIN_FOR
        while True:
            remote = getattr(self._actor, method).options(concurrency_group=kind).remote
            try:
                with plainly():
                    return self._ray.get(remote(*args, **options))
            except self._ray.exceptions.RayActorError:
                if time.monotonic() > end or self._ended:
                    raise
                time.sleep(PAUSE)

    def _encode(self, method: str, given: Sequence[Any]) -> list[Any]:
        """What encoders make of each, side by side; the router does it where there is none."""
        end = time.monotonic() + AGAIN_FOR
        self._encoders = self._encoders or self._call("ask", "encoders")
        found: list[Any] = [None] * len(given)
        missing = list(range(len(given)))
        while missing:
            own, some = self._actor, self._encoders
            asked = {
                at: (getattr(some[next(self._turn) % len(some)], method).remote(given[at]))
                if some
                else getattr(own, method).options(concurrency_group="ask").remote(given[at])
                for at in missing
            }
            missing = []
            for at, ref in asked.items():
                try:
                    with plainly():
                        found[at] = self._ray.get(ref)
                except self._ray.exceptions.RayActorError:
                    if time.monotonic() > end or self._ended:
                        raise
                    missing.append(at)
            if missing:  # an encoder has died, or the router with all of them
                time.sleep(PAUSE)
                self._encoders = self._call("ask", "encoders")
        return found

    def learn_one(
        self,
        image: ImageSource,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """Learn one labelled image; it is durable when this returns."""
        [[encoded]] = self._encode("encoded", [[load_image(image)]])
        return self._taught([(encoded, label, candidates, key)])[0]

    def learn_record(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere."""
        [located] = self._encode("located", [record])
        return self._taught([(located, label, candidates, key)])[0]

    def learn_many(
        self, examples: Iterable[tuple[ImageSource, str] | tuple[ImageSource, str, str | None]]
    ) -> int:
        """`learn_one` for each (image, label) or (image, label, key); leaves work side by side."""
        rest, count = iter(examples), 0
        while some := list(islice(rest, TOGETHER)):
            images = [[load_image(image)] for image, *_ in some]
            lessons = []
            for [encoded], (_, label, *key) in zip(
                self._encode("encoded", images), some, strict=True
            ):
                lessons.append((encoded, label, None, key[0] if key else None))
            count += len(self._taught(lessons))
        return count

    def _taught(self, lessons: list[tuple[EncodedImage, str, Any, str | None]]) -> list[Learned]:
        """Each has a key, so that it may be sent twice."""
        keyed = [(*one, key or uuid.uuid4().hex) for *one, key in lessons]
        found: list[Learned] = self._call("learn", "learn_all", keyed)
        return found

    def forget(self, *, label: str) -> int:
        """Remove every example of a label, for good, from every leaf; returns how many."""
        return int(self._call("control", "forget", label))

    def consolidate(self, epochs: int = 10) -> None:
        """Train every leaf offline over its own memory, one after the other."""
        self._call("control", "consolidate", epochs)

    def snapshot(self, to: str | Path) -> int:
        """Copy the whole tree into a new folder that every node can reach; it is a tree, too."""
        return int(self._call("control", "snapshot", str(Path(to).resolve())))

    def verify(self) -> TreeReport:
        """Have every leaf read and check what it has."""
        found: TreeReport = self._call("control", "verify")
        return found

    def stats(self) -> dict[str, LabelStats]:
        """Per label: examples of all leaves, and the means of what they know by their examples."""
        found: dict[str, LabelStats] = self._call("control", "stats")
        return found

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = THRESHOLD
    ) -> Any:
        """A `TreePrediction` for one image, a list of them for a list."""
        given, many = images_given(images)
        sent = [load_image(image) for image in given]
        parts = [sent[start : start + TOGETHER] for start in range(0, len(sent), TOGETHER)]
        found: list[TreePrediction] = []
        for looked in self._encode("looked", parts):
            found += self._call("ask", "predict", looked, labels, threshold)
        return found if many else found[0]

    @property
    def labels(self) -> list[str]:
        """Every label learned."""
        found: list[str] = self._call("ask", "labels")
        return found

    @property
    def fingerprint(self) -> str:
        """Of the model: an edge must have the same."""
        return str(self._call("ask", "fingerprint"))

    def __len__(self) -> int:
        """Examples stored, once all that is on its way has been learned."""
        return int(self._call("control", "size"))

    def health(self) -> list[Health]:
        """How each leaf is."""
        found: list[Health] = self._call("control", "health")
        return found

    def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node."""
        self._call("control", "migrate", leaf, node)

    def rebalance(self) -> dict[int, str]:
        """Move leaves to nodes that have fewer, such as one that has joined; says what moved."""
        found: dict[int, str] = self._call("control", "rebalance")
        return found

    def down(self) -> None:
        """End the tree on the cluster; its folder stays, with all that it learned."""
        self._ended = True
        self._call("control", "close")
        self._ray.kill(self._actor)


def up(
    folder: str | Path,
    *,
    address: str | None = None,
    model: str = "embedded",
    capacity: int | None = None,
    near: int = 1,
    cpus: float = 1.0,
    durability: Durability = "full",
    accept_loss: bool = False,
    copy_to: str | None = None,
    encoders: int = 0,
) -> ClusterClassifier:
    """Start a tree on a cluster; `address` is as `ray.init` takes it, None: a cluster here.

    `durability` is as `OnRay` takes it, `accept_loss` and `copy_to` as `TreeClassifier.open` does.
    So many `encoders` make records of images, each with `cpus` cores as leaves have; until one has
    its model, and without any, the router does it.
    """
    ray = import_ray()
    connect_ray(ray, address)
    host = ray.remote(
        num_cpus=cpus,
        concurrency_groups=AT_ONCE,
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,  # Ray starts it again where there is room; the tree is in its folder
    )(RouterHost)
    try:
        place = str(Path(folder).resolve())
        copy_to = None if copy_to is None else settled(copy_to)  # the router runs elsewhere
        options = capacity, near, cpus, durability, accept_loss, copy_to, encoders
        actor = host.remote(place, model, *options)
    except ValueError as error:  # the name is taken
        raise AlreadyUp(f"A tree runs on this cluster already: {error}") from error
    made = ClusterClassifier(actor)
    try:
        health = actor.health.options(concurrency_group="control").remote()
        if not ray.wait([health], timeout=SOON)[0]:
            told = f"It has not started in {SOON:.0f} s: does a node have {cpus:g} cores to spare?"
            warnings.warn(told, stacklevel=2)
        ray.get(health)  # until all are there
    except ray.exceptions.RayActorError as error:
        ray.kill(actor)  # or Ray would try again for ever
        raise AnytimeError(f"The router did not start: {died_of(error)}") from error
    return made


def connect(address: str | None = "auto") -> ClusterClassifier:
    """The tree that runs on a cluster."""
    ray = import_ray()
    connect_ray(ray, address)
    try:
        return ClusterClassifier(ray.get_actor(NAME, namespace=NAMESPACE))
    except ValueError as error:
        raise AnytimeError(
            "No tree runs on this cluster: start one with `anytimecl scale up`."
        ) from error
