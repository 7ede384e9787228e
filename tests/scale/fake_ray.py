"""As much of Ray as `OnRay` uses, in this process: actors that a test can hold up or kill."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ActorUnavailableError(RayActorError):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class Ref:
    """A result on its way."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._future: Future[Any] = Future()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._future.set_result(work())
        except Exception as error:
            self._future.set_exception(error)

    def future(self) -> Future[Any]:
        return self._future


class Actor:
    """Answers `teach` by the lesson's key, `ready` by its node, and all else by its number."""

    def __init__(self, number: int, node: str, open_: threading.Event) -> None:
        self.number, self.node, self.open = number, node, open_
        self.killed = self.slow = False
        self.error: RayError | None = None  # of whatever is asked from now on

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> Ref:
            return Ref(lambda: self._answer(name, args))

        method = SimpleNamespace(remote=remote)
        method.options = lambda **_: method
        return method

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        if self.killed:
            raise RayActorError("it was killed")
        if self.error is not None:
            raise self.error
        if name == "ready":
            self.open.wait(60)
            return self.node if not self.slow else threading.Event().wait(60)
        return args[0].key if name == "teach" else self.number


class FakeRay:
    """A cluster of two nodes, a and b, and c that is dead."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.open = threading.Event()  # while it is not set, no actor gets ready
        self.open.set()
        self._nodes = itertools.cycle("ab")

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": node, "Alive": node != "c", "Resources": {"CPU": 8.0}} for node in "abc"]

    def remote(self, **_: Any) -> Any:
        def made(cls: type, strategy: Any = "SPREAD") -> Any:
            def start(*_: Any) -> Actor:
                node = next(self._nodes) if strategy == "SPREAD" else strategy.node_id
                self.actors.append(Actor(len(self.actors), node, self.open))
                return self.actors[-1]

            host = SimpleNamespace(remote=start)
            host.options = lambda scheduling_strategy: made(cls, scheduling_strategy)
            return host

        return made

    def get(self, ref: Ref, timeout: float | None = None) -> Any:
        if not wait([ref.future()], timeout).done:
            raise GetTimeoutError("not yet")
        return ref.future().result()

    def kill(self, actor: Actor) -> None:
        actor.killed = True
