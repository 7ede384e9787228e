"""Consolidation as a background job, which is restarted if the service stops or crashes."""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import AnytimeError
from anytimecl.serve.audit import Audit
from anytimecl.serve.events import Broadcast
from anytimecl.serve.jobs import Job, Jobs
from anytimecl.serve.pending import Pending, Promise
from anytimecl.serve.problems import Problem
from anytimecl.serve.turns import Turns

log = logging.getLogger("anytimecl.serve")


class _Cancelled(Exception):
    """The job was cancelled."""


class _Interrupted(Exception):
    """The service stopped during the job."""


class Consolidating:
    """Runs at most one consolidation of a memory, in the queue of its changes."""

    def __init__(
        self,
        classifier: AnytimeClassifier,
        turns: Turns,
        broadcast: Broadcast,
        audit: Audit,
        pending: Pending,
    ) -> None:
        self.jobs = Jobs()
        self.stopping = threading.Event()
        self._classifier, self._turns, self._broadcast = classifier, turns, broadcast
        self._audit, self._pending = audit, pending
        self._cancelled: set[str] = set()  # ids

    def begin(self, epochs: int, begun: int = 0) -> Job:
        """Queue a job, and return at once."""
        if not len(self._classifier):
            raise Problem(409, "Nothing is learned yet: there is nothing to practise.")
        job = self.jobs.begin("consolidate")
        if job is None:
            raise Problem(409, "A consolidation is under way already.")
        try:  # write it first: a fast job would clear it before it is written
            self._pending.write(Promise(epochs, begun + 1))
            self._turns.submit(lambda: self._run(job, epochs))
        except BaseException:
            self._pending.clear()
            self.jobs.drop(job.id)
            raise
        self._audit.add("began", job=job.id, kind=job.kind, epochs=epochs)
        return job

    def cancel(self, job: Job) -> None:
        """Cancel a job that has not ended; the model stays as it was before the job."""
        self._cancelled.add(job.id)
        self._audit.add("cancelled", job=job.id)

    def keep_promise(self) -> None:
        """Restart the job that the last process did not finish."""
        promise = self._pending.read()
        self._pending.clear()
        if promise is not None and len(self._classifier):
            log.warning("the consolidation that was cut short begins again")
            try:
                self.begin(promise.epochs, promise.begun)
            except (AnytimeError, Problem) as error:  # a full disk: predictions need no room
                log.error("it does not begin again: %s", error)

    def _run(self, job: Job, epochs: int) -> None:
        def progress(done: int, steps: int) -> None:
            # Consolidation is atomic: raising here leaves the model unchanged.
            if job.id in self._cancelled:
                raise _Cancelled
            if self.stopping.is_set():
                raise _Interrupted
            self._tell(self.jobs.change(job.id, state="running", done=done, steps=steps))

        state, error, unfinished = "done", None, False
        try:
            if job.id in self._cancelled:
                raise _Cancelled
            self._tell(self.jobs.change(job.id, state="running"))
            self._classifier.consolidate(epochs, progress=progress)
        except _Interrupted:
            state, error = "failed", "The service stopped; it begins again when it is back."
            unfinished = True
        except _Cancelled:
            state = "cancelled"
        except Exception as failure:
            log.exception("consolidation failed")
            known = isinstance(failure, AnytimeError)
            state, error = "failed", str(failure) if known else "An error inside the service."
        if not unfinished:  # before it is told: the next job may be begun, and noted, at once
            self._pending.clear()
        self._cancelled.discard(job.id)
        self._tell(self.jobs.change(job.id, state=state, error=error))

    def _tell(self, job: Job) -> None:
        self._broadcast.send("job", asdict(job))
