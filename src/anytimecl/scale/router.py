"""Client of a tree on a Ray cluster, and how a tree is started there."""

from __future__ import annotations

import itertools
import time
import uuid
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from anytimecl.classifier import LabelStats
from anytimecl.errors import AnytimeError
from anytimecl.images import ImageSource, images_given, load_image
from anytimecl.memory.database import Durability
from anytimecl.prediction import THRESHOLD
from anytimecl.scale.answers import TreePrediction
from anytimecl.scale.copy_places import settled
from anytimecl.scale.leaf_host import NAMESPACE, connect_ray, died_of, import_ray, plainly
from anytimecl.scale.leaves import Health
from anytimecl.scale.record_host import EncodedImage
from anytimecl.scale.router_host import AT_ONCE, RouterHost
from anytimecl.scale.snapshots import TreeReport
from anytimecl.scale.tree_learning import Example, parts_of
from anytimecl.trainer import Learned

NAME = "router"
TOGETHER = 32  # images in one call
AGAIN_FOR, PAUSE = 120.0, 0.5  # seconds to wait for a router that is restarted, and between checks
SOON = 60.0  # seconds until a slow start is reported, with possible causes


class AlreadyUp(AnytimeError):
    """A tree already runs on the cluster."""


class ClusterClassifier:
    """Client of a tree on a cluster, with the methods of `TreeClassifier`."""

    def __init__(self, actor: Any) -> None:
        self._ray, self._actor = import_ray(), actor
        self._ended = False
        self._encoders: list[Any] = []
        self._turn = itertools.count()

    def _call(self, kind: str, method: str, *args: Any, **options: Any) -> Any:
        """Call the router, with retries while Ray restarts it.

        So calls must be idempotent: examples have keys.
        """
        end = time.monotonic() + AGAIN_FOR
        while True:
            remote = getattr(self._actor, method).options(concurrency_group=kind).remote
            try:
                with plainly():
                    return self._ray.get(remote(*args, **options))
            except self._ray.exceptions.RayActorError:
                if time.monotonic() > end or self._ended:
                    raise
                time.sleep(PAUSE)

    def _encode(self, method: str, given: Sequence[Any]) -> list[Any]:
        """Encode in parallel on the encoders, or on the router if there is none."""
        end = time.monotonic() + AGAIN_FOR
        self._encoders = self._encoders or self._call("ask", "encoders")
        found: list[Any] = [None] * len(given)
        missing = list(range(len(given)))
        while missing:
            own, some = self._actor, self._encoders
            asked = {
                at: (getattr(some[next(self._turn) % len(some)], method).remote(given[at]))
                if some
                else getattr(own, method).options(concurrency_group="ask").remote(given[at])
                for at in missing
            }
            missing = []
            for at, ref in asked.items():
                try:
                    with plainly():
                        found[at] = self._ray.get(ref)
                except self._ray.exceptions.RayActorError:
                    if time.monotonic() > end or self._ended:
                        raise
                    missing.append(at)
            if missing:  # an encoder has died, or the router with all of them
                time.sleep(PAUSE)
                self._encoders = self._call("ask", "encoders")
        return found

    def learn_one(
        self,
        image: ImageSource,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """Learn one labelled image; it is durable when this returns."""
        [[encoded]] = self._encode("encoded", [[load_image(image)]])
        return self._taught([(encoded, label, candidates, key)])[0]

    def learn_record(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere."""
        [located] = self._encode("located", [record])
        return self._taught([(located, label, candidates, key)])[0]

    def learn_many(self, examples: Iterable[Example]) -> int:
        """`learn_one` for each (image, label) or (image, label, key); leaves learn in parallel."""
        rest, count = map(parts_of, examples), 0
        while some := list(islice(rest, TOGETHER)):
            made = self._encode("encoded", [[load_image(image)] for image, _, _ in some])
            lessons = [
                (encoded, label, None, key)
                for [encoded], (_, label, key) in zip(made, some, strict=True)
            ]
            count += len(self._taught(lessons))
        return count

    def _taught(self, lessons: list[tuple[EncodedImage, str, Any, str | None]]) -> list[Learned]:
        """Send examples, with keys, so that they may be sent twice."""
        keyed = [(*one, key or uuid.uuid4().hex) for *one, key in lessons]
        found: list[Learned] = self._call("learn", "learn_all", keyed)
        return found

    def forget(self, *, label: str) -> int:
        """Delete every example of a label, permanently, from every leaf; returns their number."""
        return int(self._call("control", "call", "forget", label=label))

    def consolidate(self, epochs: int = 10) -> None:
        """Train every leaf offline over its own memory, one at a time."""
        self._call("control", "call", "consolidate", epochs)

    def snapshot(self, to: str | Path) -> int:
        """Copy the tree into a new folder, which every node can reach."""
        return int(self._call("control", "call", "snapshot", str(Path(to).resolve())))

    def verify(self) -> TreeReport:
        """Verify the memory of every leaf."""
        found: TreeReport = self._call("control", "call", "verify")
        return found

    def stats(self) -> dict[str, LabelStats]:
        """Statistics by label: examples of all leaves summed, the rest averaged by examples."""
        found: dict[str, LabelStats] = self._call("control", "call", "stats")
        return found

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = THRESHOLD
    ) -> Any:
        """A `TreePrediction` for one image, a list of them for a list."""
        given, many = images_given(images)
        sent = [load_image(image) for image in given]
        parts = [sent[start : start + TOGETHER] for start in range(0, len(sent), TOGETHER)]
        found: list[TreePrediction] = []
        for looked in self._encode("looked", parts):
            found += self._call("ask", "predict", looked, labels, threshold)
        return found if many else found[0]

    @property
    def labels(self) -> list[str]:
        """Every seen label."""
        found: list[str] = self._call("ask", "labels")
        return found

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model, which an edge client must share."""
        return str(self._call("ask", "fingerprint"))

    def __len__(self) -> int:
        """Number of stored examples, after pending ones have been learned."""
        return int(self._call("control", "call", "__len__"))

    def health(self) -> list[Health]:
        """State of each leaf."""
        found: list[Health] = self._call("control", "health")
        return found

    def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node."""
        self._call("control", "migrate", leaf, node)

    def rebalance(self) -> dict[int, str]:
        """Move leaves to nodes with fewer, such as a new one; returns the moves."""
        found: dict[int, str] = self._call("control", "rebalance")
        return found

    def down(self) -> None:
        """Stop the tree on the cluster; its folder is kept."""
        self._ended = True
        with suppress(self._ray.exceptions.RayActorError):  # it is gone: nothing is to be closed
            self._call("control", "close")
        self._ray.kill(self._actor)  # nor started again


def up(
    folder: str | Path,
    *,
    address: str | None = None,
    model: str = "embedded",
    capacity: int | None = None,
    near: int = 1,
    cpus: float = 1.0,
    durability: Durability = "full",
    accept_loss: bool = False,
    copy_to: str | None = None,
    encoders: int = 0,
) -> ClusterClassifier:
    """Start a tree on a cluster; `address` is passed to `ray.init`, None starts a cluster here.

    `durability` is as in `OnRay`, `accept_loss` and `copy_to` as in `TreeClassifier.open`.
    `encoders` is the number of encoder actors, with `cpus` cores each, like leaves; without any, or
    until one is ready, the router encodes.
    """
    ray = import_ray()
    connect_ray(ray, address)
    host = ray.remote(
        num_cpus=cpus,
        concurrency_groups=AT_ONCE,
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,  # Ray starts it again where there is room; the tree is in its folder
    )(RouterHost)
    try:
        place = str(Path(folder).resolve())
        copy_to = None if copy_to is None else settled(copy_to)  # the router runs elsewhere
        options = capacity, near, cpus, durability, accept_loss, copy_to, encoders
        actor = host.remote(place, model, *options)
    except ValueError as error:  # the name is taken
        raise AlreadyUp(f"A tree runs on this cluster already: {error}") from error
    made = ClusterClassifier(actor)
    try:
        health = actor.health.options(concurrency_group="control").remote()
        if not ray.wait([health], timeout=SOON)[0]:
            told = f"It has not started in {SOON:.0f} s: does a node have {cpus:g} cores to spare?"
            warnings.warn(told, stacklevel=2)
        ray.get(health)  # until all are there
    except KeyboardInterrupt:
        ray.kill(actor)  # else it would wait for room, and keep its name from the next one
        raise
    except ray.exceptions.RayActorError as error:
        ray.kill(actor)  # else Ray would retry for ever
        raise AnytimeError(f"The router did not start: {died_of(error)}") from error
    return made


def connect(address: str | None = "auto") -> ClusterClassifier:
    """Connect to the tree that runs on a cluster."""
    ray = import_ray()
    connect_ray(ray, address)
    try:
        return ClusterClassifier(ray.get_actor(NAME, namespace=NAMESPACE))
    except ValueError as error:
        raise AnytimeError(
            "No tree runs on this cluster: start one with `anytimecl scale up`."
        ) from error
