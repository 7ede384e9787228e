"""A small client for the service, with nothing but the standard library."""

from __future__ import annotations

import base64
import http.client
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote, urlsplit

from anytimecl.errors import AnytimeError

ImageFile = str | PathLike[str] | bytes


class ServiceError(AnytimeError):
    """The service refused, or could not be reached."""

    def __init__(self, detail: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status = status  # of HTTP; 0 where there was no answer
        self.retry_after = retry_after


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
    state: str  # queued, running, done or failed
    done: int
    steps: int
    error: str | None

    @property
    def over(self) -> bool:
        """Whether it will change no more."""
        return self.state in ("done", "failed")


class Client:
    """A service, spoken to over HTTP. Any number of threads may use one client.

    Whoever is told to come back later waits and asks again, at most `patience` seconds. A lesson
    carries a key, so asking again never teaches twice.

    >>> client = Client("http://127.0.0.1:8000", token="...")
    >>> client.url
    'http://127.0.0.1:8000'
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout: float = 120.0,
        patience: float = 60.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ServiceError(f"An address looks like http://127.0.0.1:8000, not {url!r}.")
        self.url = url.rstrip("/")
        self._parts = parts
        self._token = token
        self._timeout = timeout
        self._patience = patience

    @overload
    def predict(
        self,
        images: ImageFile,
        labels: Sequence[str] | None = None,
        *,
        top_k: int = 5,
        threshold: float = 1.0,
    ) -> Answer: ...
    @overload
    def predict(
        self,
        images: list[Any] | tuple[ImageFile, ...],
        labels: Sequence[str] | None = None,
        *,
        top_k: int = 5,
        threshold: float = 1.0,
    ) -> list[Answer]: ...
    def predict(
        self,
        images: ImageFile | list[Any] | tuple[ImageFile, ...],
        labels: Sequence[str] | None = None,
        *,
        top_k: int = 5,
        threshold: float = 1.0,
    ) -> Answer | list[Answer]:
        """An `Answer` for one image, a list of them for a list."""
        many = isinstance(images, list | tuple)
        chosen = images if isinstance(images, list | tuple) else [images]
        fields = [("top_k", str(top_k)), ("threshold", str(threshold))]
        fields += [("labels", label) for label in labels or ()]
        files = [("images", _read(image)) for image in chosen]
        told = self._form("/v1/predict", fields, files)
        answers = [_answer(one) for one in told["predictions"]]
        return answers if many else answers[0]

    def learn(
        self,
        image: ImageFile,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Lesson:
        """Teach one labelled image; it is durable when this returns."""
        fields = [("label", label)] + [("candidates", other) for other in candidates or ()]
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        told = self._form("/v1/learn", fields, [("image", _read(image))], headers)
        return Lesson(told["id"], told["label"], told["repeated"])

    def learn_records(
        self, records: Sequence[Record], *, fingerprint: str, codec: str
    ) -> list[Recorded]:
        """Teach what was compressed here; the images stay. `stats` names fingerprint and codec.

        What is `learned` or `repeated` is durable when this returns.
        """
        asked = {
            "fingerprint": fingerprint,
            "codec": codec,
            "examples": [_record(record) for record in records],
        }
        told = self._json("/v1/records", asked)["examples"]
        return [Recorded(one["key"], one["state"], one["id"], one["detail"]) for one in told]

    def forget(self, *, example_id: int | None = None, label: str | None = None) -> int:
        """Remove an example, or every example of a label; returns how many."""
        if (example_id is None) == (label is None):
            raise ServiceError("Say what to forget: either example_id=... or label=...")
        what = f"examples/{example_id}" if label is None else f"labels/{quote(label, safe='')}"
        return int(self._ask("DELETE", f"/v1/{what}")["forgotten"])

    def labels(self) -> dict[str, int]:
        """Every label, and how many examples it has."""
        told = self._ask("GET", "/v1/labels")["labels"]
        return {item["label"]: item["examples"] for item in told}

    def stats(self) -> dict[str, Any]:
        """The service in numbers."""
        return self._ask("GET", "/v1/stats")

    def consolidate(self, epochs: int = 1, *, wait: bool = True, pause: float = 0.5) -> Job:
        """Practise on the whole memory; without `wait`, ask `job` how far it is."""
        job = _job(self._json("/v1/consolidate", {"epochs": epochs}))
        while wait and not job.over:
            time.sleep(pause)
            job = self.job(job.id)
        if job.state == "failed":
            raise ServiceError(job.error or "The consolidation failed.")
        return job

    def job(self, identity: str) -> Job:
        """Where a job stands."""
        return _job(self._ask("GET", f"/v1/jobs/{quote(identity, safe='')}"))

    # Inside

    def _form(
        self,
        path: str,
        fields: Sequence[tuple[str, str]],
        files: Sequence[tuple[str, bytes]],
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        boundary = uuid.uuid4().hex
        body = b"".join([*_parts(boundary, fields, files), f"--{boundary}--\r\n".encode()])
        kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return self._ask("POST", path, body, {**kind, **(headers or {})})

    def _json(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(asked).encode()
        return self._ask("POST", path, body, {"Content-Type": "application/json"})

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> dict[str, Any]:
        end = time.monotonic() + self._patience
        while True:
            try:
                return self._ask_once(method, path, body, headers)
            except ServiceError as error:
                wait = error.retry_after
                if wait is None or time.monotonic() + wait > end:
                    raise
            time.sleep(wait)

    def _ask_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        connection = kind[self._parts.scheme](self._parts.netloc, timeout=self._timeout)
        sent = dict(headers)
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, body, sent)
            response = connection.getresponse()
            told = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(f"{self.url} does not answer: {error!r}.") from error
        finally:
            connection.close()
        return _check(response, told)


def _check(response: http.client.HTTPResponse, told: bytes) -> dict[str, Any]:
    try:
        content = json.loads(told)
    except ValueError:
        content = {}
    if response.status < 300 and isinstance(content, dict):
        return content
    wait = response.getheader("Retry-After", "")
    detail = content.get("detail") if isinstance(content, dict) else None
    raise ServiceError(
        detail or f"The service answered {response.status} {response.reason}.",
        response.status,
        float(wait) if wait.isdecimal() else None,
    )


def _parts(
    boundary: str, fields: Sequence[tuple[str, str]], files: Sequence[tuple[str, bytes]]
) -> Iterator[bytes]:
    for name, value in fields:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        yield head.encode() + value.encode() + b"\r\n"
    for name, data in files:
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="image"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        yield head.encode() + data + b"\r\n"


def _record(record: Record) -> dict[str, Any]:
    plain = {
        "key": record.key,
        "label": record.label,
        "record": base64.b64encode(record.record).decode(),
    }
    return plain if record.candidates is None else {**plain, "candidates": [*record.candidates]}


def _read(image: ImageFile) -> bytes:
    return bytes(image) if isinstance(image, bytes | bytearray) else Path(image).read_bytes()


def _answer(told: Mapping[str, Any]) -> Answer:
    scores = told["scores"]
    return Answer(
        told["label"],
        told["probability"],
        told["none_of_these"],
        {score["label"]: score["blended"] for score in scores},
        {score["label"]: score["tuned"] for score in scores},
        {score["label"]: score["original"] for score in scores},
    )


def _job(told: Mapping[str, Any]) -> Job:
    return Job(told["id"], told["state"], told["done"], told["steps"], told["error"])
