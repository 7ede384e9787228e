"""What a service says, as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anytimecl.errors import AnytimeError


class ServiceError(AnytimeError):
    """The service refused, or could not be reached."""

    def __init__(
        self,
        detail: str,
        status: int = 0,
        retry_after: float | None = None,
        *,
        reached: bool = True,
    ) -> None:
        super().__init__(detail)
        self.status = status  # of HTTP; 0 where there was no answer
        self.retry_after = retry_after
        self.reached = reached  # False where the service never saw the request


@dataclass(frozen=True)
class Answer:
    """What the service says of one image."""

    label: str
    probability: float
    none_of_these: float
    probabilities: dict[str, float]  # blended, best first
    tuned: dict[str, float | None] = field(repr=False)
    original: dict[str, float] = field(repr=False)


@dataclass(frozen=True)
class Lesson:
    """An example that the service has stored."""

    id: int
    label: str
    repeated: bool  # its key was known: nothing was learned again


@dataclass(frozen=True)
class Taught:
    """What the service did with one lesson of several."""

    state: str  # learned, repeated, refused (for good) or later (send it again)
    id: int | None
    detail: str | None  # why it was not learned


@dataclass(frozen=True)
class Record:
    """An example that was encoded and compressed before it is sent: no image."""

    key: str  # the same key teaches once
    label: str
    record: bytes  # of the codec
    candidates: Sequence[str] | None = None


@dataclass(frozen=True)
class Recorded:
    """What the service did with a record."""

    key: str
    state: str  # learned, repeated, refused (for good) or later (send it again)
    id: int | None
    detail: str | None  # why it was refused


@dataclass(frozen=True)
class Job:
    """Where a consolidation stands."""

    id: str
    state: str  # queued, running, done, failed or cancelled
    done: int
    steps: int
    error: str | None

    @property
    def over(self) -> bool:
        """Whether it will change no more."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True)
class FileTaught:
    """What became of one file of a folder."""

    file: str  # below the folder
    label: str
    state: str  # learned, repeated or refused
    id: int | None
    detail: str | None  # why it was not learned


def answer_of(told: Mapping[str, Any]) -> Answer:
    """From JSON."""
    scores = told["scores"]
    return Answer(
        told["label"],
        told["probability"],
        told["none_of_these"],
        {score["label"]: score["blended"] for score in scores},
        {score["label"]: score["tuned"] for score in scores},
        {score["label"]: score["original"] for score in scores},
    )


def job_of(told: Mapping[str, Any]) -> Job:
    """From JSON."""
    return Job(told["id"], told["state"], told["done"], told["steps"], told["error"])
