"""As much of Ray as `OnRay` uses, with real processes: actors that can be killed or stopped.

Actors are forks of a process that is forked when a `ProcessRay` is made, so that none inherits a
lock that a thread holds. A cluster has `cpus` of them at a time; others wait for room. When the
process that made it ends, however it ends, so do they.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from tests.scale.fake_ray import GetTimeoutError, RayActorError, RayError

from anytimecl.scale import leaf_host, on_ray

SIZE = struct.Struct("<Q")


def send(line: socket.socket, told: Any) -> None:
    raw = pickle.dumps(told)
    line.sendall(SIZE.pack(len(raw)) + raw)


def receive(line: socket.socket) -> Any:
    """EOFError where the other side is gone."""

    def exactly(size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            more = line.recv(size - len(parts))
            if not more:
                raise EOFError
            parts += more
        return parts

    return pickle.loads(exactly(*SIZE.unpack(exactly(SIZE.size))))


# ---------------------------------------------------------------------------- the actors' side


def fork_on_demand(line: socket.socket) -> None:
    """For each socket that comes in: an actor that speaks on it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    with suppress(OSError):  # whoever asked is gone
        while (found := socket.recv_fds(line, 1, 1))[0]:
            child = os.fork()
            if not child:
                line.close()
                act(socket.socket(fileno=found[1][0]))
            os.close(found[1][0])
            send(line, child)
    os._exit(0)


def act(line: socket.socket) -> None:
    """Be an actor until the other side is gone."""
    try:
        host, node, given = receive(line)
        there = SimpleNamespace(get_node_id=lambda: node)
        leaf_host.import_ray = lambda: SimpleNamespace(get_runtime_context=lambda: there)
        actor: Any = None
        why = ""
        try:
            actor = host(*given)
        except Exception as error:
            why = f"it could not be made: {error}"
        threads = {"learn": ThreadPoolExecutor(1), "ask": ThreadPoolExecutor(2)}
        threads["control"] = ThreadPoolExecutor(1)
        speaking = threading.Lock()

        def answer(number: int, method: str, args: tuple[Any, ...]) -> None:
            try:
                found: tuple[Any, BaseException | None]
                found = (None, RayActorError(why)) if why else (getattr(actor, method)(*args), None)
            except Exception as error:
                found = None, error
            with speaking:
                send(line, (number, *found))

        while True:
            number, group, method, args = receive(line)
            threads[group].submit(answer, number, method, args)
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


# --------------------------------------------------------------------------- the caller's side


class Ref:
    def __init__(self) -> None:
        self.done: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.done


class Actor:
    """A process, or the wish for one."""

    def __init__(self) -> None:
        self.pid = 0
        self._line: socket.socket | None = None
        self._lock = threading.RLock()
        self._refs: dict[int, Ref] = {}
        self._early: list[tuple[Any, ...]] = []
        self._count = 0
        self._dead = False
        self._listening: threading.Thread | None = None

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return self._method(method, "control")

    def _method(self, method: str, group: str) -> Any:
        def remote(*args: Any) -> Ref:
            return self._ask(group, method, args)

        options = lambda concurrency_group: self._method(method, concurrency_group)  # noqa: E731
        return SimpleNamespace(remote=remote, options=options)

    def _ask(self, group: str, method: str, args: tuple[Any, ...]) -> Ref:
        ref = Ref()
        with self._lock:
            self._count += 1
            if self._dead:
                ref.done.set_exception(RayActorError("it is dead"))
                return ref
            self._refs[self._count] = ref
            told = self._count, group, method, args
            if self._line is None:
                self._early.append(told)
            else:
                self._say(told)
        return ref

    def _say(self, told: Any) -> None:
        assert self._line is not None
        with suppress(OSError):  # whoever listens finds out
            send(self._line, told)

    def begin(self, line: socket.socket, pid: int, given: Any) -> None:
        with self._lock:
            self._line, self.pid = line, pid
            if self._dead:
                os.kill(pid, signal.SIGKILL)
            self._say(given)
            for told in self._early:
                self._say(told)
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._line is not None
        try:
            while True:
                number, found, error = receive(self._line)
                with self._lock:
                    ref = self._refs.pop(number)
                if error is None:
                    ref.done.set_result(found)
                else:
                    ref.done.set_exception(error)
        except (EOFError, OSError):
            self.end()
        self._line.close()

    def end(self) -> None:
        """It is dead, and so is whatever was asked of it."""
        with self._lock:
            self._dead, refs = True, list(self._refs.values())
            self._refs.clear()
        for ref in refs:
            ref.done.set_exception(RayActorError("it died"))

    def join(self) -> None:
        """Wait until its process is gone and its line closed."""
        if self._listening is not None:
            self._listening.join()

    @property
    def dead(self) -> bool:
        return self._dead


class ProcessRay:
    """One node, on which `cpus` actors run at a time."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError)

    def __init__(self, cpus: int = 1000) -> None:
        self.cpus = cpus
        self.actors: list[Actor] = []
        self._lock = threading.Lock()
        self._waiting: list[tuple[Actor, Any]] = []
        self._line, theirs = socket.socketpair()
        self._forks = os.fork()
        if not self._forks:
            self._line.close()
            fork_on_demand(theirs)
        theirs.close()

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "a", "Alive": True}]

    def remote(self, **_: Any) -> Any:
        def made(host: type) -> Any:
            def start(*given: Any) -> Actor:
                actor = Actor()
                self.actors.append(actor)
                with self._lock:
                    self._waiting.append((actor, (host, "a", given)))
                self.make_room()
                return actor

            return SimpleNamespace(remote=start, options=lambda **_: made(host))

        return made

    def make_room(self) -> None:
        """Start who waits, as far as there is room."""
        with self._lock:
            self._waiting = [(actor, its) for actor, its in self._waiting if not actor.dead]
            while self._waiting and len(self.alive()) < self.cpus:
                actor, given = self._waiting.pop(0)
                ours, theirs = socket.socketpair()
                socket.send_fds(self._line, [b"1"], [theirs.fileno()])
                theirs.close()
                actor.begin(ours, receive(self._line), given)

    def alive(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.pid and not actor.dead]

    def get(self, ref: Ref, timeout: float | None = None) -> Any:
        if not wait([ref.done], timeout).done:
            raise GetTimeoutError("not yet")
        return ref.done.result()

    def kill(self, actor: Actor) -> None:
        actor.end()
        if actor.pid:
            with suppress(ProcessLookupError):
                os.kill(actor.pid, signal.SIGKILL)
            actor.join()  # its lock on the memory ends with it
        self.make_room()

    def close(self) -> None:
        for actor in self.actors:
            self.kill(actor)
        self._line.close()
        os.waitpid(self._forks, 0)


@contextmanager
def process_ray(monkeypatch: pytest.MonkeyPatch, cpus: int = 1000) -> Iterator[ProcessRay]:
    """In Ray's place."""
    made = ProcessRay(cpus)
    monkeypatch.setattr(on_ray, "import_ray", lambda: made)
    try:
        yield made
    finally:
        made.close()
