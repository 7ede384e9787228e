"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Any, Self, TypeVar, overload

from anytimecl.client._client import Client
from anytimecl.client._told import (
    Answer,
    FileTaught,
    Job,
    Lesson,
    Record,
    Recorded,
    ServiceError,
    Taught,
)
from anytimecl.client._wire import ImageFile

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio: the same methods as coroutines.

    Parameters
    ----------
    url
        Of the service.
    connections
        Concurrent requests at most.
    **options
        Those of `Client`.

    Examples
    --------
    >>> client = AsyncClient("http://127.0.0.1:8000")
    >>> client.url
    'http://127.0.0.1:8000'
    >>> client.close()
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, connections: int = 8, **options: Any
    ) -> None:
        self._client = Client(url, **options)
        self.url = self._client.url
        self._threads = ThreadPoolExecutor(connections, "anytimecl-client")

    @overload
    async def predict(
        self, images: ImageFile, labels: Sequence[str] | None = None, **options: Any
    ) -> Answer: ...
    @overload
    async def predict(
        self,
        images: list[Any] | tuple[ImageFile, ...],
        labels: Sequence[str] | None = None,
        **options: Any,
    ) -> list[Answer | ServiceError]: ...
    async def predict(
        self, images: Any, labels: Sequence[str] | None = None, **options: Any
    ) -> Any:
        """`Client.predict`, awaited."""
        return await self._run(self._client.predict, images, labels, **options)

    async def learn_one(self, image: ImageFile, label: str, **options: Any) -> Lesson:
        """`Client.learn_one`, awaited."""
        return await self._run(self._client.learn_one, image, label, **options)

    learn = learn_one

    async def learn_many(self, lessons: Sequence[tuple[ImageFile, str, str]]) -> list[Taught]:
        """`Client.learn_many`, awaited."""
        return await self._run(self._client.learn_many, lessons)

    async def learn_records(
        self, records: Sequence[Record], *, fingerprint: str, codec: str
    ) -> list[Recorded]:
        """`Client.learn_records`, awaited."""
        return await self._run(
            self._client.learn_records, records, fingerprint=fingerprint, codec=codec
        )

    async def forget(self, *, example_id: int | None = None, label: str | None = None) -> int:
        """`Client.forget`, awaited."""
        return await self._run(self._client.forget, example_id=example_id, label=label)

    async def labels(self) -> dict[str, int]:
        """`Client.labels`, awaited."""
        return await self._run(self._client.labels)

    async def stats(self) -> dict[str, Any]:
        """`Client.stats`, awaited."""
        return await self._run(self._client.stats)

    async def consolidate(self, epochs: int = 1, **options: Any) -> Job:
        """`Client.consolidate`, awaited."""
        return await self._run(self._client.consolidate, epochs, **options)

    async def job(self, identity: str) -> Job:
        """`Client.job`, awaited."""
        return await self._run(self._client.job, identity)

    async def jobs(self) -> list[Job]:
        """`Client.jobs`, awaited."""
        return await self._run(self._client.jobs)

    async def cancel(self, identity: str) -> Job:
        """`Client.cancel`, awaited."""
        return await self._run(self._client.cancel, identity)

    async def learn_folder(
        self, folder: str | PathLike[str], *, batch: int = 16
    ) -> AsyncIterator[FileTaught]:
        """`Client.learn_folder`, awaited."""
        async for one in self._stream(self._client.learn_folder(folder, batch=batch)):
            yield one

    async def predict_folder(
        self, folder: str | PathLike[str], labels: Sequence[str] | None = None, *, batch: int = 16
    ) -> AsyncIterator[tuple[str, Answer | ServiceError]]:
        """`Client.predict_folder`, awaited."""
        async for one in self._stream(self._client.predict_folder(folder, labels, batch=batch)):
            yield one

    async def backup(self, folder: str | PathLike[str]) -> None:
        """`Client.backup`, awaited."""
        await self._run(self._client.backup, folder)

    async def audit(self) -> AsyncIterator[dict[str, Any]]:
        """`Client.audit`, awaited."""
        async for one in self._stream(self._client.audit()):
            yield one

    async def memories(self) -> list[dict[str, Any]]:
        """`Client.memories`, awaited."""
        return await self._run(self._client.memories)

    async def create_memory(self, name: str) -> None:
        """`Client.create_memory`, awaited."""
        await self._run(self._client.create_memory, name)

    async def delete_memory(self, name: str) -> None:
        """`Client.delete_memory`, awaited."""
        await self._run(self._client.delete_memory, name)

    async def tokens(self) -> list[dict[str, Any]]:
        """`Client.tokens`, awaited."""
        return await self._run(self._client.tokens)

    async def grant(self, name: str, right: str, memories: Sequence[str] | None = None) -> str:
        """`Client.grant`, awaited."""
        return await self._run(self._client.grant, name, right, memories)

    async def revoke(self, name: str) -> None:
        """`Client.revoke`, awaited."""
        await self._run(self._client.revoke, name)

    def close(self) -> None:
        """Finish current requests, then stop the threads."""
        self._threads.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    async def _run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        work = functools.partial(call, *args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _stream(self, items: Iterator[T]) -> AsyncIterator[T]:
        def advance() -> tuple[T] | None:
            for one in items:
                return (one,)
            return None

        while (found := await self._run(advance)) is not None:
            yield found[0]
