"""Asynchronous interface to a classifier: runs blocking work outside the event loop.

Images pass through an `Intake`, which all memories share. Changes run in one thread per memory, in
order.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import compress
from typing import TypeVar

import torch

from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import ImageBytes
from anytimecl.errors import ImageError
from anytimecl.labels import clean_label, clean_labels
from anytimecl.prediction import Prediction
from anytimecl.serve.audit import Audit
from anytimecl.serve.backups import Backups
from anytimecl.serve.choices import Choices
from anytimecl.serve.consolidating import Consolidating
from anytimecl.serve.disk import bytes_free, why_full
from anytimecl.serve.events import Broadcast
from anytimecl.serve.history import History
from anytimecl.serve.intake import Intake
from anytimecl.serve.jobs import Job
from anytimecl.serve.options import Options
from anytimecl.serve.pending import Pending
from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.recent import Recent
from anytimecl.serve.telling import LookedAt
from anytimecl.serve.turns import Turns

T = TypeVar("T")


class Engine:
    """A classifier and its queues. Owns the classifier, and closes it.

    Without an `intake` it creates its own.
    """

    def __init__(
        self, classifier: AnytimeClassifier, options: Options, intake: Intake | None = None
    ) -> None:
        self.classifier = classifier
        self.options = options
        self.intake = intake or Intake(classifier.backbone, options)
        self._owns_intake = intake is None
        self.metrics = self.intake.metrics
        self.answer, self.look = self.intake.answer, self.intake.look
        self.broadcast = Broadcast(options.streams)
        self.recent = Recent(options.thumbnails)
        self.looked_at = LookedAt(classifier)
        path = classifier.memory.path
        self.folder = path.parent if path else None
        self.read_only = classifier.memory.read_only
        folder = None if self.read_only else self.folder  # where files may be written
        self.history = History(self.folder, keep=not self.read_only)
        self.audit = Audit(folder)
        self.backups = Backups(self.folder)
        self.choices = Choices(self.folder, keep=not self.read_only)
        self.turns = Turns("learner", options.learn_waiting)
        self._consolidating = Consolidating(
            classifier, self.turns, self.broadcast, self.audit, Pending(folder)
        )
        self.jobs = self._consolidating.jobs
        self._consolidating.keep_promise()

    # Predicting

    async def name(self, labels: Sequence[str]) -> None:
        """Embed labels that are new."""
        await self.intake.name(labels, self.classifier.settings.templates)

    async def predict(
        self,
        images: Sequence[bytes | ImageError],
        labels: Sequence[str] | None,
        threshold: float,
        *,
        remember: bool = False,
    ) -> list[Prediction | ImageError]:
        """A prediction or an error for each image; `remember` keeps its vector for `order`."""
        asked = None if labels is None else clean_labels(labels)
        if asked is None and not self.classifier.labels:
            raise Problem(409, "Nothing is learned yet: say which labels to choose from.")
        await self.name(asked or ())
        with self.intake.ticket() as ticket:
            decoded = await self.intake.decode(images, ticket)
            good = [one[0] for one in decoded if not isinstance(one, ImageError)]
            if not good:
                return [one for one in decoded if isinstance(one, ImageError)]
            tokens = torch.stack(await self.intake.encode(good, ticket))
        if remember:
            sound = [not isinstance(one, ImageError) for one in decoded]
            await self.answer(lambda: self.looked_at.add(compress(images, sound), tokens))
        found = await self.answer(
            lambda: self.classifier.predict_tokens(tokens, asked, threshold=threshold)
        )
        answers = iter(found)
        return [one if isinstance(one, ImageError) else next(answers) for one in decoded]

    # Changing

    async def forget_example(self, example: int) -> int:
        """Forget an example."""

        def forget() -> int:
            memory = self.classifier.memory
            with memory.reading():
                if memory.records.find(example) is None:
                    raise Problem(404, f"There is no example {example}.")
            return self._forgotten(self.classifier.forget(example_id=example), example=example)

        return await self.in_turn(forget)

    async def forget_label(self, label: str) -> int:
        """Forget every example of a label."""
        name = clean_label(label)

        def forget() -> int:
            if not (count := self.classifier.forget(label=name)):
                raise Problem(404, f"There is no example of {name!r}.")
            return self._forgotten(count, examples=count)

        return await self.in_turn(forget)

    async def in_turn(self, work: Callable[[], T]) -> T:
        """Run a change in the queue of changes.

        If it waits too long, it is cancelled and Busy is raised, so that the client can safely
        retry.
        """
        context = contextvars.copy_context()  # has the client
        future: Future[T] = self.turns.submit(lambda: context.run(work))
        try:
            waiting = asyncio.shield(asyncio.wrap_future(future))
            return await asyncio.wait_for(waiting, self.options.learn_seconds)
        except TimeoutError:
            if future.cancel():
                told = "A longer task is under way; nothing was changed. Ask again later."
                raise Busy(told, self.turns.wait) from None
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.cancel()  # the client disconnected; a change that has begun is finished
            raise

    def consolidate(self, epochs: int) -> Job:
        """Start a job, and return at once. It is restarted after a stop or a crash."""
        return self._consolidating.begin(epochs)

    def cancel(self, job: Job) -> None:
        """Cancel a job that has not ended; the model stays as it was before the job."""
        self._consolidating.cancel(job)

    # Status

    @property
    def keeps_images(self) -> bool:
        """Whether the memory stores image files instead of features."""
        return self.classifier.settings.name_of("codec") == ImageBytes.name

    def disk_bytes(self) -> int:
        """Size of database and write-ahead log."""
        path = self.classifier.memory.path
        if path is None:
            return 0
        size = 0
        for file in (path, path.with_name(path.name + "-wal")):
            with suppress(FileNotFoundError):  # the second comes and goes
                size += file.stat().st_size
        return size

    @property
    def ready(self) -> bool:
        """Whether all threads are running and the service is not stopping."""
        stopping = self._consolidating.stopping.is_set()
        return self.intake.alive and self.turns.alive and not stopping

    @property
    def idle(self) -> bool:
        """Whether no change waits and no job is running."""
        job = self.jobs.latest()
        return not len(self.turns) and (job is None or job.over)

    def disk_free(self) -> int | None:
        """Free bytes on the memory's disk; None for a memory in RAM."""
        return None if self.folder is None else bytes_free(self.folder)

    def not_ready(self) -> str | None:
        """Why the service cannot accept work; None if it can."""
        if not self.ready:
            return "The service is stopping."
        if self.folder is None or self.read_only:
            return None
        return why_full(self.folder, self.options.disk_free)

    # Ending

    def stop_soon(self) -> None:
        """Interrupt long jobs and end event streams; other requests continue."""
        self._consolidating.stopping.set()
        self.broadcast.close()

    def close(self) -> None:
        """Finish the queues, then close the memory."""
        self.stop_soon()
        if self._owns_intake:
            self.intake.close()
        self.turns.close()
        self.classifier.close()

    # Private

    def _forgotten(self, count: int, **what: int) -> int:
        """Drop what RAM has of forgotten examples, and tell of it."""
        memory = self.classifier.memory
        with memory.reading():
            self.recent.keep(lambda example: memory.records.find(example) is not None)
        self.looked_at.clear()
        self.audit.add("forgot", **what, event=memory.last)  # the journal has their numbers
        self.broadcast.send("forgotten", {"examples": count})
        return count
