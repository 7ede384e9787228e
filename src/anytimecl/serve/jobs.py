"""Work that takes longer than a request: consolidation."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

KEPT = 100  # jobs
State = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class Job:
    """State of a job.

    >>> Job("a1", "consolidate").state
    'queued'
    """

    id: str
    kind: str
    state: State = "queued"
    done: int = 0  # steps
    steps: int = 0  # 0 while unknown
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in ("done", "failed", "cancelled")


class Jobs:
    """All jobs of this process; thread-safe."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, kind: str) -> Job | None:
        """Add a job; None if one of its kind has not ended."""
        with self._lock:
            if any(job.kind == kind and not job.over for job in self._jobs.values()):
                return None
            job = Job(secrets.token_hex(8), kind)
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT:
                self._jobs.popitem(last=False)
            return job

    def change(self, identity: str, **changes: object) -> Job:
        """Update fields of a job."""
        with self._lock:
            job = replace(self._jobs[identity], **changes)  # type: ignore[arg-type]
            self._jobs[identity] = job
            return job

    def drop(self, identity: str) -> None:
        """Remove a job that could not be started."""
        with self._lock:
            self._jobs.pop(identity, None)

    def get(self, identity: str) -> Job | None:
        """The job, or None."""
        with self._lock:
            return self._jobs.get(identity)

    def all(self) -> list[Job]:
        """All jobs, newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def latest(self) -> Job | None:
        """The newest job, or None."""
        with self._lock:
            return next(reversed(self._jobs.values()), None)
