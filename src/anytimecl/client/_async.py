"""The client for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from anytimecl.client._client import Client
from anytimecl.client._told import Answer, ServiceError
from anytimecl.client._wire import ImageFile

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._run(method, self._client, *args, **options)

    call.__doc__ = f"`Client.{method.__name__}`, awaited."
    return call


def _streamed(
    method: Callable[Concatenate[Client, P], Iterator[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    @functools.wraps(method)
    def call(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> AsyncIterator[T]:
        return self._stream(method(self._client, *args, **options))

    call.__doc__ = f"`Client.{method.__name__}`, awaited."
    return call


class AsyncClient:
    """`Client` for asyncio: the same methods as coroutines.

    `learn_folder`, `predict_folder` and `audit` are asynchronous iterators.

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

    learn_one = _awaited(Client.learn_one)
    learn = learn_one
    learn_many = _awaited(Client.learn_many)
    learn_records = _awaited(Client.learn_records)
    forget = _awaited(Client.forget)
    labels = _awaited(Client.labels)
    stats = _awaited(Client.stats)
    consolidate = _awaited(Client.consolidate)
    job = _awaited(Client.job)
    jobs = _awaited(Client.jobs)
    cancel = _awaited(Client.cancel)
    learn_folder = _streamed(Client.learn_folder)
    predict_folder = _streamed(Client.predict_folder)
    backup = _awaited(Client.backup)
    audit = _streamed(Client.audit)
    memories = _awaited(Client.memories)
    create_memory = _awaited(Client.create_memory)
    delete_memory = _awaited(Client.delete_memory)
    tokens = _awaited(Client.tokens)
    grant = _awaited(Client.grant)
    revoke = _awaited(Client.revoke)

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
