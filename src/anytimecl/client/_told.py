"""Responses of the service as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anytimecl.errors import AnytimeError


class ServiceError(AnytimeError):
    """The service returned an error or cannot be reached."""

    def __init__(
        self,
        detail: str,
        status: int = 0,
        retry_after: float | None = None,
        *,
        reached: bool = True,
        images: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status  # of HTTP; 0 without a response
        self.retry_after = retry_after
        self.reached = reached  # False if the service cannot have received the request
        self.images = images  # if none of several can be read: the `index` and `detail` of each


@dataclass(frozen=True)
class Answer:
    """The prediction for an image."""

    label: str
    probability: float
    none_of_these: float
    probabilities: dict[str, float]  # blended, best first
    tuned: dict[str, float | None] = field(repr=False)
    original: dict[str, float] = field(repr=False)


@dataclass(frozen=True)
class Lesson:
    """A learned example."""

    id: int
    label: str
    repeated: bool  # the key was known: nothing was learned


@dataclass(frozen=True)
class Taught:
    """Result of one of several images."""

    state: str  # learned, repeated, refused (for good) or later (send it again)
    id: int | None
    detail: str | None  # why it was not learned


@dataclass(frozen=True)
class Record:
    """An image that was encoded and compressed by the client."""

    key: str  # learned once
    label: str
    record: bytes  # made by the codec
    candidates: Sequence[str] | None = None


@dataclass(frozen=True)
class Recorded:
    """Result of one record."""

    key: str
    state: str  # learned, repeated, refused (for good) or later (send it again)
    id: int | None
    detail: str | None  # why it was refused


@dataclass(frozen=True)
class Job:
    """State of a consolidation."""

    id: str
    state: str  # queued, running, done, failed or cancelled
    done: int
    steps: int
    error: str | None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True)
class FileTaught:
    """Result of one file of a folder."""

    file: str  # relative to the folder
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
