"""The replicas: encoders, the keeper of the model's state, and the HTTP front ends.

Independent of Ray except for the handles that they get, which are called as
`await handle.method.remote(...)`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from starlette.types import ASGIApp
from torch import Tensor

from anytimecl.backbone import Backbone, load_stored
from anytimecl.backbone.text import LabelCache
from anytimecl.errors import AnytimeError, StoreError
from anytimecl.memory import open_memory
from anytimecl.memory.opening import stored_meta
from anytimecl.scale.serving.state import AnswerState, SnapshotClassifier, state_of
from anytimecl.serve import tracing
from anytimecl.serve.app import create_app
from anytimecl.serve.engine import Engine
from anytimecl.serve.fair import Ticket
from anytimecl.serve.intake import Intake
from anytimecl.serve.memories import Memories
from anytimecl.serve.options import Options
from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.tokens import AccessTokens, read_tokens

log = logging.getLogger("anytimecl.serve")
T = TypeVar("T")
BATCH = Options.encode_batch  # images in the trunk together
NOBODY = "No encoder can be reached at the moment; ask again."


@dataclass(frozen=True)
class ServedMemory:
    """Configuration of all replicas."""

    folder: str
    model: str | None = None  # None: the memory's own
    tokens: str | None = None  # a file that every node has
    guarded: bool = False  # whether tokens are set: a replica that finds none does not begin
    every: float = 10.0  # seconds between two looks at whether more was learned
    threads: int = 1  # of torch, in each replica


def served_model(served: ServedMemory, device: str = "cpu") -> Backbone:
    """Load the model of a memory."""
    torch.set_num_threads(served.threads)
    meta = stored_meta(Path(served.folder))
    if meta is None:
        raise StoreError(f"There is no memory in {served.folder}.")
    found = load_stored(meta, served.model, device=device).with_labels()
    if found.spec.fingerprint != meta["fingerprint"]:
        raise StoreError(
            f"The memory in {served.folder} was made with another model than {found.spec.name!r} "
            f"on {device!r}: its features are other ones."
        )
    return found


class EncoderHost:
    """Encodes images and embeds labels, with the trunk and the text encoder."""

    def __init__(self, served: ServedMemory, device: str = "cpu") -> None:
        self._backbone = served_model(served, device)
        self._one_at_a_time = asyncio.Lock()  # each takes all threads that there are

    async def encode_batch(self, pixels: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Encode a batch of pixels [3, height, width] to tokens [token, width] each."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._encode, pixels)

    @torch.no_grad()
    def _encode(self, pixels: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        stacked = torch.tensor(np.stack(pixels)).to(self._backbone.device)
        return list(self._backbone.trunk(stacked).cpu().numpy())

    async def embedded(self, labels: list[str], templates: list[str] | None) -> NDArray[Any]:
        """Labels to unit vectors [label, dim]."""
        async with self._one_at_a_time:
            found = await asyncio.to_thread(self._backbone.embed_labels, labels, templates)
            return found.cpu().numpy()


class KeeperHost:
    """Loads the model's state from the memory when it has changed, and distributes it.

    `share` puts it into Ray's object store, so that it is sent to each node once.
    """

    def __init__(self, served: ServedMemory, share: Callable[[AnswerState], Any]) -> None:
        self._served, self._share = served, share
        self._backbone = served_model(served)
        self._looking = threading.Lock()
        self._event, self._shared = -1, None
        self._look()

    async def latest(self, known: int) -> tuple[int, list[Any]]:
        """The event of the current state, and references to it unless the event is `known`."""
        await asyncio.to_thread(self._look)
        return self._event, [] if known == self._event else [self._shared]

    def _look(self) -> None:
        with self._looking:
            folder = Path(self._served.folder)
            with open_memory(folder, read_only=True) as memory:
                last = memory.last
            if last != self._event:
                state = state_of(folder, self._backbone)
                self._shared, self._event = self._share(state), last


@dataclass(frozen=True)
class Encoders:
    """Client of the encoders, for an answering replica."""

    handle: Any
    busy: tuple[type[Exception], ...] = ()  # errors that say that too many wait
    lost: tuple[type[Exception], ...] = (ConnectionError,)  # that no encoder answered

    async def tokens(self, pixels: Sequence[Tensor]) -> list[NDArray[Any]]:
        """Tokens of each image; requests of several replicas are batched."""
        return await self._told(
            asyncio.gather(*(self.handle.encode.remote(one.numpy()) for one in pixels))
        )

    async def embedded(
        self, labels: Sequence[str], templates: Sequence[str] | None
    ) -> NDArray[Any]:
        """Unit embeddings of labels, [label, dim]."""
        chosen = None if templates is None else list(templates)
        return await self._told(self.handle.embedded.remote(list(labels), chosen))

    async def _told(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except self.busy as error:
            raise Busy("Too many images wait to be looked at; ask again later.", 1) from error
        except self.lost as error:
            raise Problem(503, NOBODY, retry_after=2) from error


class RemoteLabels:
    """Blocking client for embedding labels."""

    def __init__(self, encoders: Encoders, loop: asyncio.AbstractEventLoop) -> None:
        self._encoders, self._loop = encoders, loop

    def __call__(self, labels: Sequence[str], templates: Sequence[str] | None) -> Tensor:
        """Unit embeddings [label, dim]."""
        asked = self._encoders.embedded(labels, templates)
        return torch.tensor(asyncio.run_coroutine_threadsafe(asked, self._loop).result())


class RemoteIntake(Intake):
    """An intake that encodes remotely; encoders batch the requests of all replicas."""

    def __init__(self, backbone: Backbone, options: Options, encoders: Encoders) -> None:
        super().__init__(backbone, options)
        self._encoders = encoders
        # One answer a core: more of them at once would take cores that others count on.
        self._answers.shutdown()
        self._answers = ThreadPoolExecutor(torch.get_num_threads(), "anytimecl-answer")

    async def encode(
        self, pixels: Sequence[Tensor], ticket: Ticket, *, lesson: bool = False
    ) -> list[Tensor]:
        """Tokens [token, width] of each."""
        with tracing.span("encode", images=len(pixels)):
            return [torch.tensor(one) for one in await self._encoders.tokens(pixels)]


class AnswerHost:
    """The service's HTTP API for predictions, from the shared state."""

    def __init__(self, served: ServedMemory, encoders: Encoders, keeper: Any) -> None:
        torch.set_num_threads(served.threads)
        self._served, self._encoders, self._keeper = served, encoders, keeper
        self._cache = LabelCache()
        self._labels: RemoteLabels | None = None
        self._memories: Memories | None = None
        self._following: asyncio.Task[None] | None = None

    async def begin(self, fetch: Callable[[Any], Any]) -> None:
        """Load the first state; `fetch` retrieves what the keeper shares."""
        self._fetch = fetch
        self._labels = RemoteLabels(self._encoders, asyncio.get_running_loop())
        classifier = await self._newer(-1)
        assert classifier is not None
        intake = RemoteIntake(classifier.backbone, Options(), self._encoders)
        engine = Engine(cast("Any", classifier), intake.options, intake)
        self._memories = Memories(engine)
        self._following = asyncio.ensure_future(self._follow(engine))

    async def _newer(self, known: int) -> SnapshotClassifier | None:
        event, shared = await self._keeper.latest.remote(known)
        if not shared:
            return None
        state = await self._fetch(shared[0])
        assert self._labels is not None
        found = await asyncio.to_thread(SnapshotClassifier, state, self._labels, self._cache)
        found.event = event
        return found

    async def _follow(self, engine: Engine) -> None:
        """Follow changes of the state."""
        known = cast("SnapshotClassifier", engine.classifier).event
        while True:
            await asyncio.sleep(self._served.every)
            try:
                newer = await self._newer(known)
            except Exception as error:  # it goes on with what it has, and asks again
                log.warning("nothing newer could be fetched: %s", error)
                continue
            if newer is not None:
                engine.classifier, known = cast("Any", newer), newer.event
                engine.intake.backbone = newer.backbone

    def app(self) -> ASGIApp:
        """The app of a single service."""
        assert self._memories is not None
        file = self._served.tokens
        tokens = tokens_of(None if file is None else Path(file))
        if self._served.guarded and not tokens:
            raise AnytimeError(
                f"Tokens are set where this was started, and there are none here: {file} must be "
                "on every node, or ANYTIMECL_READ_TOKEN in the environment of every node."
            )
        return create_app(self._memories, tokens)

    def check_health(self) -> None:
        """Raises if this replica should be replaced."""
        if self._memories is None or not self._memories.default.intake.alive:
            raise AnytimeError("It does not answer any more.")
        if self._following is None or self._following.done():
            raise AnytimeError("It hears of nothing new any more.")

    async def end(self) -> None:
        """Shut down."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following


def tokens_of(file: Path | None) -> AccessTokens:
    """Access tokens, from a file and the environment."""
    return read_tokens(file, os.environ)
