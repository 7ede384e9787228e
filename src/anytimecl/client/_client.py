"""A client for the service that needs only the standard library."""

from __future__ import annotations

import base64
import reprlib
import time
import uuid
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote

from anytimecl.client import _export
from anytimecl.client._folder import learn_folder, predict_folder
from anytimecl.client._told import (
    Answer,
    FileTaught,
    Job,
    Lesson,
    Record,
    Recorded,
    ServiceError,
    Taught,
    answer_of,
    job_of,
)
from anytimecl.client._wire import ImageFile, Wire, read_file
from anytimecl.labels import clean_label, clean_labels


class Client:
    """HTTP client of the service; thread-safe.

    When the service is busy (429), the client waits and repeats the request, for at most `patience`
    seconds. After a lost connection it repeats the request up to `retries` times, if that is safe:
    learn requests have a key, so none is learned twice. The default `memory` is the first.

    Parameters
    ----------
    url
        Of the service.
    token
        For authentication, if the service requires it.
    memory
        Name of one of its memories; by default the first.
    timeout
        Seconds to wait for one response.
    patience
        Seconds to wait, in all, while the service is busy.
    retries
        How often a request is repeated after a lost connection.

    Raises
    ------
    ServiceError
        By every method: the service returned an error or cannot be reached.

    Examples
    --------
    >>> client = Client("http://127.0.0.1:8000", token="...")
    >>> client.url
    'http://127.0.0.1:8000'
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        memory: str | None = None,
        timeout: float = 120.0,
        patience: float = 60.0,
        retries: int = 4,
    ) -> None:
        self._wire = Wire(url, token, timeout=timeout, patience=patience, retries=retries)
        self.url = self._wire.url
        self._prefix = "/v1" if memory is None else f"/v1/memories/{quote(memory, safe='')}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}{self._prefix}>"  # never the token

    @overload
    def predict(
        self,
        images: ImageFile,
        labels: Sequence[str] | None = None,
        *,
        top_k: int = 5,
        threshold: float | None = None,
    ) -> Answer: ...
    @overload
    def predict(
        self,
        images: list[Any] | tuple[ImageFile, ...],
        labels: Sequence[str] | None = None,
        *,
        top_k: int = 5,
        threshold: float | None = None,
    ) -> list[Answer | ServiceError]: ...
    def predict(
        self,
        images: ImageFile | list[Any] | tuple[ImageFile, ...],
        labels: Sequence[str] | None = None,
        *,
        top_k: int = 5,
        threshold: float | None = None,
    ) -> Answer | list[Answer | ServiceError]:
        """Predict an image, or each image of a list.

        Parameters
        ----------
        images
            A file or its bytes, or a list of them.
        labels
            Candidate labels; by default every label learned so far.
        top_k
            Number of labels in the response.
        threshold
            Of the probability of "none of these"; by default the service's.

        Returns
        -------
        Answer or list
            An answer, or a list with an answer or error for each image.
        """
        many = isinstance(images, list | tuple)
        chosen = images if isinstance(images, list | tuple) else [images]
        fields = [("top_k", str(top_k))]
        if threshold is not None:
            fields.append(("threshold", str(threshold)))
        fields += _labels("labels", labels)
        if not chosen:
            return []
        files = [("images", read_file(image)) for image in chosen]
        try:
            told = self._wire.form(f"{self._prefix}/predict", fields, files)
        except ServiceError as error:
            if not many or not error.images:
                raise
            told = {"predictions": [None] * len(chosen), "errors": error.images}
        if not many:
            return answer_of(told["predictions"][0])
        wrong = {one["index"]: ServiceError(one["detail"], 422) for one in told["errors"]}
        return [
            wrong[index] if one is None else answer_of(one)
            for index, one in enumerate(told["predictions"])
        ]

    def learn_one(
        self,
        image: ImageFile,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Lesson:
        """Learn a labelled image; it is durable when this returns.

        Parameters
        ----------
        image
            A file or its bytes.
        label
            What it shows.
        candidates
            Candidate labels of the example, its own included; by default every label learned so
            far.
        key
            A key is learned once, so a retry is safe.

        Returns
        -------
        Lesson
            The stored example.
        """
        fields = [("label", clean_label(label)), *_labels("candidates", candidates)]
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        told = self._wire.form(
            f"{self._prefix}/learn", fields, [("image", read_file(image))], headers
        )
        return Lesson(told["id"], told["label"], told["repeated"])

    learn = learn_one

    def learn_many(self, lessons: Sequence[tuple[ImageFile, str, str]]) -> list[Taught]:
        """Learn up to 32 images in this order.

        Examples that are `learned` or `repeated` are durable when this returns.

        Parameters
        ----------
        lessons
            Up to 32 tuples (image, label, key).

        Returns
        -------
        list of Taught
            In the same order.
        """
        asked = [_asked(lesson) for lesson in lessons]
        told = self._wire.json(f"{self._prefix}/learn/batch", {"examples": asked})["examples"]
        return [Taught(one["state"], one["id"], one["detail"]) for one in told]

    def learn_records(
        self, records: Sequence[Record], *, fingerprint: str, codec: str
    ) -> list[Recorded]:
        """Learn images that were encoded and compressed here, without sending them.

        `stats` has the service's fingerprint and codec. Examples that are `learned` or `repeated`
        are durable when this returns.

        Parameters
        ----------
        records
            Compressed examples.
        fingerprint
            Of the model that they were made with.
        codec
            Its name.

        Returns
        -------
        list of Recorded
            In the same order.
        """
        asked = {
            "fingerprint": fingerprint,
            "codec": codec,
            "examples": [_record(record) for record in records],
        }
        told = self._wire.json(f"{self._prefix}/records", asked)["examples"]
        return [Recorded(one["key"], one["state"], one["id"], one["detail"]) for one in told]

    def forget(self, *, example_id: int | None = None, label: str | None = None) -> int:
        """Forget an example, or every example of a label; returns how many.

        Parameters
        ----------
        example_id
            Id of the example, which `learn_one` returned.
        label
            Whose examples are forgotten.

        Returns
        -------
        int
            How many were forgotten.

        Raises
        ------
        ServiceError
            Neither or both are given, or the service returned an error.
        """
        if (example_id is None) == (label is None):
            raise ServiceError("Say what to forget: either example_id=... or label=...")
        what = f"examples/{example_id}" if label is None else f"labels/{quote(label, safe='')}"
        return int(self._wire.ask("DELETE", f"{self._prefix}/{what}", once=True)["forgotten"])

    def labels(self) -> dict[str, int]:
        """Every learned label with its number of examples.

        Returns
        -------
        dict of str to int
            Examples by label.
        """
        told = self._wire.ask("GET", f"{self._prefix}/labels")["labels"]
        return {item["label"]: item["examples"] for item in told}

    def stats(self) -> dict[str, Any]:
        """Statistics of the memory and the service.

        Returns
        -------
        dict
            The response of `GET /v1/stats`.
        """
        return self._wire.ask("GET", f"{self._prefix}/stats")

    def consolidate(self, epochs: int = 1, *, wait: bool = True, pause: float = 0.5) -> Job:
        """Train over the whole memory; without `wait`, `job` shows the progress.

        Parameters
        ----------
        epochs
            Number of passes over all examples.
        wait
            Whether to return at its end.
        pause
            Seconds between requests for its state.

        Returns
        -------
        Job
            Its state.

        Raises
        ------
        ServiceError
            The service returned an error, or the job failed or was cancelled.
        """
        job = job_of(self._wire.json(f"{self._prefix}/consolidate", {"epochs": epochs}, once=True))
        while wait and not job.over:
            time.sleep(pause)
            job = self.job(job.id)
        if wait and job.state in ("failed", "cancelled"):
            raise ServiceError(job.error or f"The consolidation is {job.state}.")
        return job

    def job(self, identity: str) -> Job:
        """State of a job.

        Parameters
        ----------
        identity
            `id` of the job.

        Returns
        -------
        Job
            As it stands now.
        """
        return job_of(self._wire.ask("GET", f"{self._prefix}/jobs/{quote(identity, safe='')}"))

    def jobs(self) -> list[Job]:
        """Every job, newest first.

        Returns
        -------
        list of Job
            As they stand now.
        """
        return [job_of(one) for one in self._wire.ask("GET", f"{self._prefix}/jobs")["jobs"]]

    def cancel(self, identity: str) -> Job:
        """Cancel a job; the model stays as it was before the job.

        Parameters
        ----------
        identity
            `id` of the job.

        Returns
        -------
        Job
            As it stands now.
        """
        return job_of(
            self._wire.ask("DELETE", f"{self._prefix}/jobs/{quote(identity, safe='')}", once=True)
        )

    # For operators

    def backup(self, folder: str | PathLike[str]) -> None:
        """Copy the whole memory, while learning continues.

        Parameters
        ----------
        folder
            A new folder, which becomes a complete memory.
        """
        _export.backup(self._wire, f"{self._prefix}/backup", Path(folder))

    def audit(self) -> Iterator[dict[str, Any]]:
        """The audit log: who learned, changed and undid what.

        Yields
        ------
        dict
            One change, the oldest first.
        """
        return _export.audit(self._wire, f"{self._prefix}/audit")

    # Folders

    def learn_folder(self, folder: str | PathLike[str], *, batch: int = 16) -> Iterator[FileTaught]:
        """Learn every image in `folder/<label>/`, in batches.

        Images learned before are `repeated`, so an interrupted call can be run again.

        Parameters
        ----------
        folder
            With a subfolder for each label.
        batch
            Images a request.

        Yields
        ------
        FileTaught
            One for each file.
        """
        return learn_folder(self.learn_many, folder, batch)

    def predict_folder(
        self,
        folder: str | PathLike[str],
        labels: Sequence[str] | None = None,
        *,
        batch: int = 16,
    ) -> Iterator[tuple[str, Answer | ServiceError]]:
        """Predict every image below `folder`, in batches.

        Parameters
        ----------
        folder
            Searched recursively.
        labels
            Candidate labels; by default every label learned so far.
        batch
            Images a request.

        Yields
        ------
        tuple
            (file, answer or error) each.
        """
        return predict_folder(lambda images: self.predict(images, labels), folder, batch)

    # Memories and tokens

    def memories(self) -> list[dict[str, Any]]:
        """The memories that the token is valid for.

        Returns
        -------
        list of dict
            One for each memory.
        """
        return list(self._wire.ask("GET", "/v1/memories")["memories"])

    def create_memory(self, name: str) -> None:
        """Create a memory; `Client(url, memory=name)` uses it.

        Parameters
        ----------
        name
            Of the memory.
        """
        self._wire.json("/v1/memories", {"name": name}, once=True)

    def delete_memory(self, name: str) -> None:
        """Delete a memory for good.

        Parameters
        ----------
        name
            Of the memory.
        """
        self._wire.ask("DELETE", f"/v1/memories/{quote(name, safe='')}", once=True)

    def tokens(self) -> list[dict[str, Any]]:
        """Every token's name, right and memories.

        Returns
        -------
        list of dict
            One for each token.
        """
        return list(self._wire.ask("GET", "/v1/tokens")["tokens"])

    def grant(self, name: str, right: str, memories: Sequence[str] | None = None) -> str:
        """Create a token with a right, for some memories or for all.

        Parameters
        ----------
        name
            Of the token.
        right
            "read", "write" or "admin".
        memories
            Those that it is valid for; None: all.

        Returns
        -------
        str
            The token, which is shown only now.

        Raises
        ------
        TypeError
            The memories are one text.
        """
        if isinstance(memories, str):
            raise TypeError(f"Memories come as a list of names: write [{memories!r}].")
        asked = {"name": name, "right": right, "memories": memories and [*memories]}
        return str(self._wire.json("/v1/tokens", asked, once=True)["token"])

    def revoke(self, name: str) -> None:
        """Revoke a token.

        Parameters
        ----------
        name
            Of the token.
        """
        self._wire.ask("DELETE", f"/v1/tokens/{quote(name, safe='')}", once=True)


def _labels(field: str, labels: Sequence[str] | None) -> list[tuple[str, str]]:
    """Fields of a form; none for None: every learned label."""
    return [] if labels is None else [(field, label) for label in clean_labels(labels)]


def _record(record: Record) -> dict[str, Any]:
    plain = {
        "key": record.key,
        "label": record.label,
        "record": base64.b64encode(record.record).decode(),
    }
    return plain if record.candidates is None else {**plain, "candidates": [*record.candidates]}


def _asked(lesson: Any) -> dict[str, str]:
    if not isinstance(lesson, list | tuple) or len(lesson) != 3:
        raise TypeError(f"An example is (image, label, key), not {reprlib.repr(lesson)}.")
    image, label, key = lesson
    return {"image": base64.b64encode(read_file(image)).decode(), "label": label, "key": key}
