"""Work that takes longer than a request should: consolidation."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

KEPT = 100  # jobs that are over and can still be asked about
State = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class Job:
    """Where a job stands.

    >>> Job("a1", "consolidate").state
    'queued'
    """

    id: str
    kind: str
    state: State = "queued"
    done: int = 0  # steps
    steps: int = 0  # 0 while it is not known
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether it will change no more."""
        return self.state in ("done", "failed", "cancelled")


class Jobs:
    """Every job of this process, from any thread."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, kind: str) -> Job | None:
        """A new job, or None while there is one of its kind."""
        with self._lock:
            if any(job.kind == kind and not job.over for job in self._jobs.values()):
                return None
            job = Job(secrets.token_hex(8), kind)
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT:
                self._jobs.popitem(last=False)
            return job

    def change(self, identity: str, **changes: object) -> Job:
        """It is elsewhere now."""
        with self._lock:
            job = replace(self._jobs[identity], **changes)  # type: ignore[arg-type]
            self._jobs[identity] = job
            return job

    def drop(self, identity: str) -> None:
        """It never was."""
        with self._lock:
            self._jobs.pop(identity, None)

    def get(self, identity: str) -> Job | None:
        """The job, if it is known."""
        with self._lock:
            return self._jobs.get(identity)

    def all(self) -> list[Job]:
        """Newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def latest(self) -> Job | None:
        """The newest, if there is one."""
        with self._lock:
            return next(reversed(self._jobs.values()), None)
