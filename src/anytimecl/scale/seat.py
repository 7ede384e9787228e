"""A leaf's seat on a cluster: its actor, which is started again when it is lost."""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from anytimecl.scale.leaf import LeafLesson
from anytimecl.scale.leaf_host import cause_of, died_of
from anytimecl.scale.leaves import Unreachable
from anytimecl.trainer import Learned

READY = 300.0  # timeout in seconds for a leaf to open its memory
AGAIN = 1.0  # seconds between two attempts to start a leaf


class Seat:
    """The router's state of a leaf.

    `start` starts an actor for it. Examples that an actor has not acknowledged when it is lost are
    sent to the next one.
    """

    def __init__(self, ray: Any, leaf: int, create: bool, start: Callable[[Seat], Any]) -> None:
        self.leaf = leaf
        self.create = create  # its memory, where there is none
        self.actor: Any = None  # None while it is being started
        self.node = ""
        self.wanted: str | None = None  # the node to run on
        self.restarts = -1  # the first start is none
        self.pending: dict[int, tuple[LeafLesson, Future[Learned]]] = {}
        self._ray, self._start = ray, start
        self._coming: Any = None  # the actor that is being started
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._up = threading.Event()
        self._gone = False
        self._why = "does any node have room for it?"  # it did not start

    def begin(self, lost: Any = None) -> None:
        """Start the leaf in the background; a lost actor is killed first."""
        threading.Thread(target=self._started, args=(lost,), daemon=True).start()

    def teach(self, lesson: LeafLesson) -> Future[Learned]:
        """Send an example, as soon as there is an actor."""
        future = Future[Learned]()
        with self._lock:
            number = next(self._numbers)
            self.pending[number] = lesson, future
            if self.actor is not None:
                self._send(number)
        return future

    def wait(self, within: float | None = None) -> Any:
        """The actor, once there is one."""
        while not self._gone:
            if not self._up.wait(READY if within is None else within):
                raise Unreachable(f"Leaf {self.leaf} could not be started: {self._why}")
            actor = self.actor
            if actor is not None and not self._gone:
                return actor
        raise Unreachable(f"There is no leaf {self.leaf} any more.")

    def lost(self, actor: Any) -> None:
        """The actor is dead or unreachable: restart the leaf, once."""
        with self._lock:
            if self.actor is not actor or self._gone:
                return
            self._vacate(None)
        self.begin(actor)

    def lost_by(self, actor: Any, error: BaseException) -> bool:
        """Whether an error says that the actor is lost; if so, the leaf is restarted."""
        dead = isinstance(error, self._ray.exceptions.RayActorError)
        if dead:
            self.lost(actor)
        return dead

    def move(self, node: str) -> None:
        """End the actor after earlier requests, and start the leaf on a node."""
        while True:
            actor = self.wait()  # without the lock, which starting the leaf needs
            with self._lock:
                if self.actor is actor:
                    self._vacate(node)
                    break
        self._end(actor)
        self.begin()
        self.wait()

    def release(self) -> None:
        """Start no actor any more, and keep nobody waiting for one."""
        with self._lock:
            self._gone = True
            self._up.set()

    def leave(self) -> None:
        """End the leaf."""
        self.release()
        with self._lock:
            actor, coming = self.actor, self._coming
        if actor is not None:
            self._end(actor)
        elif coming is not None:
            self._ray.kill(coming)  # or it would wait for room that others could use

    def _vacate(self, wanted: str | None) -> None:
        """Take the actor out of use; the next one runs on the wanted node."""
        self.actor, self.wanted = None, wanted
        self._up.clear()

    def _send(self, number: int) -> None:
        actor = self.actor
        lesson, future = self.pending[number]

        def taught(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None and self.lost_by(actor, error):
                return  # it stays pending, and is sent again
            with self._lock:
                if self.pending.pop(number, None) is None:
                    return
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(cause_of(error))

        sent = actor.teach.options(concurrency_group="learn").remote(lesson)
        sent.future().add_done_callback(taught)

    def _started(self, lost: Any) -> None:
        """Start the leaf, retrying until it runs, and send what waits for it."""
        if lost is not None:  # one that is only out of reach still has the memory's lock
            self._ray.kill(lost)
        while not self._gone:
            self._coming = actor = self._start(self)
            try:
                node = self._ray.get(actor.ready.remote(), timeout=READY)
            except Exception as error:
                self._ray.kill(actor)
                if self._gone:
                    return
                self.wanted = None
                if not isinstance(error, TimeoutError):  # which does not say why
                    self._why = died_of(error)
                warnings.warn(f"Leaf {self.leaf} did not start: {self._why}", stacklevel=2)
                time.sleep(AGAIN)
                continue
            with self._lock:
                if self._gone:  # nothing else would end it
                    self._ray.kill(actor)
                    return
                self.actor, self.node, self._coming = actor, node, None
                self.create = False  # it is there: should it ever be missing, it is lost
                self.restarts += 1
                for number in list(self.pending):
                    self._send(number)
                self._up.set()
            return

    def _end(self, actor: Any) -> None:
        """Let the actor write its checkpoint and exit; it may be dead already."""
        try:
            learn = actor.call.options(concurrency_group="learn")
            self._ray.get(learn.remote("close"), timeout=READY)
        except (self._ray.exceptions.RayError, TimeoutError):
            pass
        self._ray.kill(actor)
