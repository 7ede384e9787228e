"""A tree on a Ray cluster: the router as an actor, and its client.

Encoders turn images into records, and the router sends them to leaves. Pending examples take no
thread of the router, so that waiting for one leaf does not block requests to others.
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
from anytimecl.scale.copy_places import settled
from anytimecl.scale.leaf_host import NAMESPACE, connect_ray, died_of, import_ray, plainly
from anytimecl.scale.leaves import Health, Unreachable
from anytimecl.scale.on_ray import OnRay, on_ray
from anytimecl.scale.pending import MustWait
from anytimecl.scale.ray_metrics import RouterMetrics
from anytimecl.scale.record_host import EncodedImage, Looked, RecordMaker, encoders_on
from anytimecl.scale.snapshots import TreeReport
from anytimecl.scale.tree import TreeClassifier
from anytimecl.scale.tree_folder import TreeInUse
from anytimecl.trainer import Learned

T = TypeVar("T")
NAME = "router"
TOGETHER = 32  # images in one call
AGAIN_FOR, PAUSE = 120.0, 0.5  # seconds to wait for a router that is restarted, and between checks
SOON = 60.0  # seconds until a slow start is reported, with possible causes
LEFT_FOR = 600.0  # seconds that a restarted router waits for the tree's lock
# Concurrent calls of each kind in the router; waiting for a leaf takes no thread.
AT_ONCE = {"learn": 1000, "ask": 1000, "control": 100}
THREADS = {"learn": 128, "ask": 64, "control": 4, "encode": 1}


class AlreadyUp(AnytimeError):
    """A tree already runs on the cluster."""


def _opened(folder: str, *, accept_loss: bool, **options: Any) -> TreeClassifier:
    """Open the tree. A restarted router waits until its predecessor's lock is released.

    On a network disk the lock may outlive its owner, and Ray does not restart an actor whose
    constructor fails. `accept_loss` applies to the first start only.
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
    """The router's actor."""

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
        """Encoders that are ready; if none, clients send images to the router."""
        if self._starting:
            waited = import_ray().wait
            done, _ = waited(list(self._starting), num_returns=len(self._starting), timeout=0)
            for ref in done:
                del self._starting[ref]
        return [each for each in self._encoders if each not in self._starting.values()]

    async def encoded(self, images: list[Any]) -> list[EncodedImage]:
        """`RecordMaker.encoded`."""
        return await self._in("encode", lambda: self._maker.encoded(images))

    async def located(self, record: bytes) -> EncodedImage:
        """`RecordMaker.located`."""
        return await self._in("encode", lambda: self._maker.located(record))

    async def looked(self, images: list[Any]) -> Looked:
        """`RecordMaker.looked`."""
        return await self._in("encode", lambda: self._maker.looked(images))

    async def learn_all(
        self, lessons: list[tuple[EncodedImage, str, Sequence[str] | None, str]]
    ) -> list[Learned]:
        """Learn encoded images with label, candidates and key."""
        with self._metrics.timed("lesson", len(lessons)):
            sent = [await self._submitted(lesson) for lesson in lessons]
            for future in sent:
                await self._done(future)
            return [future.result() for future in sent]

    async def _submitted(
        self, lesson: tuple[EncodedImage, str, Sequence[str] | None, str]
    ) -> Future[Learned]:
        """Send an example to its leaf; waits here, without a thread, until that is possible."""
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
        """Wait until a request or a split is done; raises if its leaf is stuck."""
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(over.set))
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 1.0)
            if not over.is_set():
                self._tree.check_lesson(future)

    async def predict(self, looked: Looked, labels: Any, threshold: float) -> list[TreePrediction]:
        """`TreeClassifier.predict` for encoded images."""
        tokens, vectors = torch.tensor(looked.tokens), torch.tensor(looked.vectors)

        def answer() -> list[TreePrediction]:
            return self._tree.predict_tokens(tokens, labels, threshold=threshold, vectors=vectors)

        with self._metrics.timed("question", len(tokens)):
            return await self._in("ask", answer)

    async def forget(self, label: str) -> int:
        """`TreeClassifier.forget`."""
        return await self._in("control", lambda: self._tree.forget(label=label))

    async def consolidate(self, epochs: int) -> None:
        """`TreeClassifier.consolidate`."""
        await self._in("control", lambda: self._tree.consolidate(epochs))

    async def snapshot(self, to: str) -> int:
        """`TreeClassifier.snapshot`."""
        return await self._in("control", lambda: self._tree.snapshot(to))

    async def verify(self) -> TreeReport:
        """`TreeClassifier.verify`."""
        return await self._in("control", self._tree.verify)

    async def stats(self) -> dict[str, LabelStats]:
        """`TreeClassifier.stats`."""
        return await self._in("control", self._tree.stats)

    async def labels(self) -> list[str]:
        """`TreeClassifier.labels`."""
        return self._tree.labels

    async def size(self) -> int:
        """Number of stored examples."""
        return await self._in("control", lambda: len(self._tree))

    async def fingerprint(self) -> str:
        """Fingerprint of the model, which an edge client must share."""
        return self._tree.backbone.spec.fingerprint

    async def health(self) -> list[Health]:
        """`TreeClassifier.health`."""
        found = await self._in("ask", self._tree.health)
        self._metrics.tell(found)
        return found

    async def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node."""
        leaves = self._tree.leaves
        assert isinstance(leaves, OnRay)
        await self._in("control", lambda: leaves.migrate(leaf, node))

    async def rebalance(self) -> dict[int, str]:
        """Move leaves to nodes with fewer; returns the moves."""
        leaves = self._tree.leaves
        assert isinstance(leaves, OnRay)
        return await self._in("control", leaves.rebalance)

    async def close(self) -> None:
        """Close every leaf, with a checkpoint."""
        await self._in("ask", self._tree.close)

    async def _in(self, kind: str, work: Callable[[], T]) -> T:
        """Run blocking work in a thread of this kind, outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pools[kind], work)


class ClusterClassifier:
    """Client of a tree on a cluster, with the methods of `TreeClassifier`."""

    def __init__(self, actor: Any) -> None:
        self._ray, self._actor = import_ray(), actor
        self._ended = False
        self._encoders: list[Any] = []
        self._turn = itertools.count()

    def _call(self, kind: str, method: str, *args: Any, **options: Any) -> Any:
        """Call the router, with retries while Ray restarts it.

        So calls must be idempotent: examples have keys.
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
        """Encode in parallel on the encoders, or on the router if there is none."""
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
        """`learn_one` for each (image, label) or (image, label, key); leaves learn in parallel."""
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
        """Send examples, with keys, so that they may be sent twice."""
        keyed = [(*one, key or uuid.uuid4().hex) for *one, key in lessons]
        found: list[Learned] = self._call("learn", "learn_all", keyed)
        return found

    def forget(self, *, label: str) -> int:
        """Delete every example of a label, permanently, from every leaf; returns their number."""
        return int(self._call("control", "forget", label))

    def consolidate(self, epochs: int = 10) -> None:
        """Train every leaf offline over its own memory, one at a time."""
        self._call("control", "consolidate", epochs)

    def snapshot(self, to: str | Path) -> int:
        """Copy the tree into a new folder, which every node can reach."""
        return int(self._call("control", "snapshot", str(Path(to).resolve())))

    def verify(self) -> TreeReport:
        """Verify the memory of every leaf."""
        found: TreeReport = self._call("control", "verify")
        return found

    def stats(self) -> dict[str, LabelStats]:
        """Statistics by label: examples of all leaves summed, the rest averaged by examples."""
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
        """Every seen label."""
        found: list[str] = self._call("ask", "labels")
        return found

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model, which an edge client must share."""
        return str(self._call("ask", "fingerprint"))

    def __len__(self) -> int:
        """Number of stored examples, after pending ones have been learned."""
        return int(self._call("control", "size"))

    def health(self) -> list[Health]:
        """State of each leaf."""
        found: list[Health] = self._call("control", "health")
        return found

    def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node."""
        self._call("control", "migrate", leaf, node)

    def rebalance(self) -> dict[int, str]:
        """Move leaves to nodes with fewer, such as a new one; returns the moves."""
        found: dict[int, str] = self._call("control", "rebalance")
        return found

    def down(self) -> None:
        """Stop the tree on the cluster; its folder is kept."""
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
    """Start a tree on a cluster; `address` is passed to `ray.init`, None starts a cluster here.

    `durability` is as in `OnRay`, `accept_loss` and `copy_to` as in `TreeClassifier.open`.
    `encoders` is the number of encoder actors, with `cpus` cores each, like leaves; without any, or
    until one is ready, the router encodes.
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
        ray.kill(actor)  # else Ray would retry for ever
        raise AnytimeError(f"The router did not start: {died_of(error)}") from error
    return made


def connect(address: str | None = "auto") -> ClusterClassifier:
    """Connect to the tree that runs on a cluster."""
    ray = import_ray()
    connect_ray(ray, address)
    try:
        return ClusterClassifier(ray.get_actor(NAME, namespace=NAMESPACE))
    except ValueError as error:
        raise AnytimeError(
            "No tree runs on this cluster: start one with `anytimecl scale up`."
        ) from error
