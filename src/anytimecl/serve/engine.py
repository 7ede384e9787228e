"""The one door from requests to the classifier: blocking work leaves the event loop here.

Images are decoded by a few threads, encoded by one in batches, answered by a few; everything that
changes what is known goes through one more, in order.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from anytimecl.classifier import AnytimeClassifier, LabelStats
from anytimecl.codec import ImageBytes
from anytimecl.errors import AnytimeError
from anytimecl.images import load_image
from anytimecl.labels import clean_label, clean_labels
from anytimecl.prediction import Prediction
from anytimecl.serve.encoder import Encoder
from anytimecl.serve.events import Broadcast
from anytimecl.serve.history import History, Outcome
from anytimecl.serve.jobs import Job, Jobs
from anytimecl.serve.metrics import Metrics
from anytimecl.serve.options import Options
from anytimecl.serve.pending import Pending, Promise
from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.recent import Entry, Recent, shrink
from anytimecl.serve.turns import Turns
from anytimecl.student import Learned

log = logging.getLogger("anytimecl.serve")
T = TypeVar("T")
Learn = Callable[..., Learned]  # of label, candidates and key; what it learns from it holds already
NAMES = 32  # labels embedded in one go
KNOWN = 10_000  # labels remembered as embedded; the vectors' own cache holds twice as many


class _Interrupted(Exception):
    """A consolidation that the end of the service cut short."""


@dataclass(frozen=True)
class Taught:
    """What became of a lesson."""

    id: int
    label: str
    repeated: bool  # its key was known, so nothing was learned again
    outcome: Outcome | None  # None where it was repeated


class Engine:
    """A classifier with its queues. It owns the classifier, and closes it."""

    def __init__(self, classifier: AnytimeClassifier, options: Options) -> None:
        self.classifier = classifier
        self.options = options
        self.metrics = Metrics()
        self.jobs = Jobs()
        self.broadcast = Broadcast(options.streams)
        self.recent = Recent(
            deque(classifier.memory.ids(), maxlen=options.thumbnails), options.thumbnails
        )
        path = classifier.memory.path
        folder = path.parent if path else None
        self.history = History(folder)
        self.encoder = Encoder(
            self._trunk,
            batch=options.encode_batch,
            waiting=options.encode_waiting,
            observe=self.metrics.observe_batch,
        )
        self.turns = Turns("learner", options.learn_waiting)
        self.names = Turns("names", options.name_waiting)
        self._named: set[str] = set()  # labels whose vectors are at hand
        self._decoders = ThreadPoolExecutor(2, "anytimecl-decode")  # bounds decoded images in RAM
        self._answers = ThreadPoolExecutor(2, "anytimecl-answer")
        self._stopping = threading.Event()
        self._pending = Pending(folder)
        self._keep_promise()

    # Predicting

    async def predict(
        self, images: Sequence[bytes], labels: Sequence[str] | None, threshold: float
    ) -> list[Prediction]:
        """One for each image."""
        asked = None if labels is None else clean_labels(labels)
        if asked is None and not self.classifier.labels:
            raise Problem(409, "Nothing is learned yet: say which labels to choose from.")
        await self._name(asked or ())
        decoded = await asyncio.gather(*(self._decode(image) for image in images))
        tokens = torch.stack(await self._encode([pixels for pixels, _ in decoded]))
        return await self.answer(
            lambda: self.classifier.predict_tokens(tokens, asked, threshold=threshold)
        )

    async def answer(self, work: Callable[[], T]) -> T:
        """Reading that may take a while, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._answers, work)

    # Learning

    async def learn(
        self, image: bytes, label: str, candidates: Sequence[str] | None, key: str | None
    ) -> Taught:
        """Durable when it returns."""
        name = clean_label(label)
        chosen = None if candidates is None else clean_labels([name, *candidates])
        if key is not None:
            known = await self.answer(lambda: self._known(key, name))
            if known is not None:  # spare the trunk
                return known
        await self._name(chosen or ())
        pixels, thumbnail = await self._decode(image, thumbnail=True)
        if self.keeps_images:  # a codec of images makes its tokens itself
            learn: Learn = functools.partial(self.classifier.learn_one, image)
        else:
            [tokens] = await self._encode([pixels], lesson=True)
            learn = functools.partial(self.classifier.learn_tokens, tokens)
        return await self.in_turn(lambda: self._teach(learn, name, chosen, key, thumbnail))

    async def learn_compressed(
        self,
        record: bytes,
        fingerprint: str,
        label: str,
        candidates: Sequence[str] | None,
        key: str,
    ) -> Taught:
        """Durable when it returns; the image was encoded elsewhere, and nobody sees it here."""
        name = clean_label(label)
        chosen = None if candidates is None else clean_labels([name, *candidates])
        await self._name(chosen or ())
        learn = functools.partial(self.classifier.learn_compressed, record, fingerprint=fingerprint)
        return await self.in_turn(lambda: self._teach(learn, name, chosen, key, None))

    async def forget_example(self, example: int) -> int:
        """Remove one example."""

        def forget() -> int:
            memory = self.classifier.memory
            with memory.reading():
                if memory.records.find(example) is None:
                    raise Problem(404, f"There is no example {example}.")
            count = self.classifier.forget(example_id=example)
            self.recent.forget(example=example)
            self.broadcast.send("forgotten", {"examples": count})
            return count

        return await self.in_turn(forget)

    async def forget_label(self, label: str) -> int:
        """Remove every example of a label."""
        name = clean_label(label)

        def forget() -> int:
            if not (count := self.classifier.forget(label=name)):
                raise Problem(404, f"There is no example of {name!r}.")
            self.recent.forget(label=name)
            self.broadcast.send("forgotten", {"examples": count})
            return count

        return await self.in_turn(forget)

    async def in_turn(self, work: Callable[[], T]) -> T:
        """A change, in the order of arrival.

        One that waits too long is taken back, so that whoever asked may safely ask again.
        """
        future = self.turns.submit(work)
        try:
            waiting = asyncio.shield(asyncio.wrap_future(future))
            return await asyncio.wait_for(waiting, self.options.learn_seconds)
        except TimeoutError:
            if future.cancel():
                told = "A longer task is under way; nothing was changed. Ask again later."
                raise Busy(told, self.turns.wait) from None
            return await asyncio.wrap_future(future)

    # Consolidating

    def consolidate(self, epochs: int, begun: int = 0) -> Job:
        """Begin a job, and return at once. A stop or a crash only puts it off."""
        if not len(self.classifier):
            raise Problem(409, "Nothing is learned yet: there is nothing to practise.")
        job = self.jobs.begin("consolidate")
        if job is None:
            raise Problem(409, "A consolidation is under way already.")
        try:  # the promise first: a quick job would take it back before it was given
            self._pending.write(Promise(epochs, begun + 1))
            self.turns.submit(lambda: self._consolidate(job, epochs))
        except BaseException:
            self._pending.clear()
            self.jobs.drop(job.id)
            raise
        return job

    def _keep_promise(self) -> None:
        """Take up what the last process did not finish."""
        promise = self._pending.read()
        self._pending.clear()
        if promise is not None and len(self.classifier):
            log.warning("the consolidation that was cut short begins again")
            self.consolidate(promise.epochs, promise.begun)

    def _consolidate(self, job: Job, epochs: int) -> None:
        def progress(done: int, steps: int) -> None:
            if self._stopping.is_set():
                raise _Interrupted  # all of it counts or nothing: what is known stays whole
            self._tell(self.jobs.change(job.id, state="running", done=done, steps=steps))

        try:
            self._tell(self.jobs.change(job.id, state="running"))
            self.classifier.consolidate(epochs, progress=progress)
        except _Interrupted:
            told = "The service stopped; it begins again when it is back."
            self._tell(self.jobs.change(job.id, state="failed", error=told))
            return
        except Exception as error:
            log.exception("consolidation failed")
            told = str(error) if isinstance(error, AnytimeError) else "An error inside the service."
            self._tell(self.jobs.change(job.id, state="failed", error=told))
        else:
            self._tell(self.jobs.change(job.id, state="done"))
        self._pending.clear()

    def _tell(self, job: Job) -> None:
        self.broadcast.send("job", job_data(job))

    # Knowing

    def stats(self) -> dict[str, LabelStats]:
        """What is known about each label."""
        return self.classifier.stats()

    @property
    def keeps_images(self) -> bool:
        """Whether the memory holds image files rather than features."""
        return self.classifier.settings.codec == ImageBytes.name

    def disk_bytes(self) -> int:
        """Database and write-ahead log."""
        path = self.classifier.memory.path
        if path is None:
            return 0
        files = (path, path.with_name(path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    @property
    def ready(self) -> bool:
        """Whether every part works."""
        return self.encoder.alive and self.turns.alive and not self._stopping.is_set()

    # Ending

    def stop_soon(self) -> None:
        """Take on no long work, and end what only listens; requests under way go on."""
        self._stopping.set()
        self.broadcast.close()

    def close(self) -> None:
        """Finish what was taken on, then let go of the memory."""
        self.stop_soon()
        self._decoders.shutdown()
        self.encoder.close()
        self.turns.close()
        self.names.close()
        self._answers.shutdown()
        self.history.close()
        self.classifier.close()

    # Inside

    async def _name(self, labels: Sequence[str]) -> None:
        """Have new labels embedded beforehand, a few at a time.

        A list of a thousand takes many seconds: whoever asks about known ones shall not wait.
        """
        backbone, templates = self.classifier.backbone, self.classifier.settings.templates
        new = [label for label in labels if label not in self._named]
        for start in range(0, len(new), NAMES):
            some = new[start : start + NAMES]
            await asyncio.wrap_future(
                self.names.submit(functools.partial(backbone.embed_labels, some, templates))
            )
            self._named.update(some)
        if len(self._named) > KNOWN:
            self._named.clear()  # the cache behind it forgets too

    def _trunk(self, pixels: Tensor) -> Tensor:
        return self.classifier.backbone.trunk(pixels.to(self.classifier.backbone.device))

    async def _decode(self, image: bytes, thumbnail: bool = False) -> tuple[Tensor, bytes | None]:
        """Pixels [3, height, width], and a small picture if it is wanted.

        Pixels, since a decoded image may be a hundred times as large, and many may wait.
        """

        def decode() -> tuple[Tensor, bytes | None]:
            loaded = load_image(image, max_pixels=self.options.pixels)
            small = shrink(loaded) if thumbnail else None
            return self.classifier.backbone.pixels([loaded])[0], small

        return await asyncio.get_running_loop().run_in_executor(self._decoders, decode)

    async def _encode(self, pixels: Sequence[Tensor], *, lesson: bool = False) -> list[Tensor]:
        futures: list[Future[Tensor]] = self.encoder.submit(pixels, lesson=lesson)
        return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))

    def _known(self, key: str, label: str) -> Taught | None:
        """What the key taught before."""
        memory = self.classifier.memory
        example = memory.has_key(key)
        if example is None:
            return None
        taught = memory.example(example).label
        if taught != label:
            raise Problem(
                409, f"The idempotency key belongs to example {example}, which is {taught!r}."
            )
        return Taught(example, label, repeated=True, outcome=None)

    def _teach(
        self,
        learn: Learn,
        label: str,
        candidates: Sequence[str] | None,
        key: str | None,
        thumbnail: bytes | None,
    ) -> Taught:
        if key is not None and (known := self._known(key, label)) is not None:
            return known
        began = time.monotonic()
        learned = learn(label, candidates=candidates, key=key)
        self.metrics.learn.observe(time.monotonic() - began)
        self.metrics.steps.inc()
        outcome = Outcome(*learned)
        self.history.add(outcome)
        self.recent.add(Entry(learned.id, label, thumbnail))
        self.broadcast.send("learned", {"id": learned.id, "label": label})
        return Taught(learned.id, label, repeated=False, outcome=outcome)


def job_data(job: Job) -> dict[str, Any]:
    """A job as requests see it."""
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "done": job.done,
        "steps": job.steps,
        "error": job.error,
    }
