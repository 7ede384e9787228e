"""The Ray actor that owns a tree: the router.

Encoders turn images into records, and the router sends them to leaves. Pending examples take no
thread of the router, so that waiting for one leaf does not block requests to others.
"""

from __future__ import annotations

import asyncio
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import torch

from anytimecl.memory.database import Durability
from anytimecl.scale.answers import TreePrediction
from anytimecl.scale.leaf_host import died_of, import_ray
from anytimecl.scale.leaves import Health, Unreachable
from anytimecl.scale.on_ray import OnRay, on_ray
from anytimecl.scale.pending import MustWait
from anytimecl.scale.ray_metrics import RouterMetrics
from anytimecl.scale.record_host import EncodedImage, Looked, RecordMaker, encoders_on
from anytimecl.scale.tree import TreeClassifier
from anytimecl.scale.tree_folder import TreeInUse
from anytimecl.trainer import Learned

T = TypeVar("T")
PAUSE = 0.5  # seconds between two attempts to open the tree
LEFT_FOR = 600.0  # seconds that a restarted router waits for the tree's lock
# Concurrent calls of each kind in the router; waiting for a leaf takes no thread.
AT_ONCE = {"learn": 1000, "ask": 1000, "control": 100}
THREADS = {"learn": 128, "ask": 64, "control": 4, "encode": 1}


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
        ray, asked = import_ray(), list(self._starting)
        for ref in ray.wait(asked, num_returns=len(asked), timeout=0)[0] if asked else ():
            if (each := self._starting.pop(ref, None)) is None:
                continue  # another call looks at it
            try:
                await asyncio.wrap_future(ref.future())
            except ray.exceptions.ActorDiedError as error:  # such as one without the model
                self._encoders.remove(each)
                warnings.warn(f"An encoder did not start: {died_of(error)}", stacklevel=1)
            except ray.exceptions.RayActorError:  # Ray is starting it again
                self._starting[each.ready.remote()] = each
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

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Any other method of the tree."""
        work = functools.partial(getattr(self._tree, method), *args, **options)
        return await self._in("control", work)

    async def labels(self) -> list[str]:
        """`TreeClassifier.labels`."""
        return self._tree.labels

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
