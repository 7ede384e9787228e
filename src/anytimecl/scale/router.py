"""A tree on a cluster that any program can reach: the router as an actor, and its caller.

The router has the trunk and the text side; it encodes images, or takes records that an edge has
compressed, and knows the way to the leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from anytimecl.classifier import LabelStats
from anytimecl.errors import AnytimeError
from anytimecl.images import ImageSource, load_image
from anytimecl.scale.answers import TreePrediction
from anytimecl.scale.leaf_host import import_ray
from anytimecl.scale.leaves import Health
from anytimecl.scale.on_ray import OnRay, on_ray
from anytimecl.scale.tree import TreeClassifier
from anytimecl.student import Learned

NAME, NAMESPACE = "router", "anytimecl"
TOGETHER = 32  # images that travel to the router in one call
# Calls of a kind that the router works on side by side. Each kind has its own threads, so that
# teachers who wait for a busy leaf hold up nobody who asks.
AT_ONCE = {"learn": 8, "ask": 8, "control": 4}


class RouterHost:
    """What runs in the router's actor."""

    def __init__(self, folder: str, model: str, capacity: int | None, near: int, cpus: float):
        self._tree = TreeClassifier.open(
            folder, model=model, capacity=capacity, near=near, leaves=on_ray(cpus=cpus)
        )

    def learn_one(self, *args: Any, **options: Any) -> Learned:
        """As the tree does."""
        return self._tree.learn_one(*args, **options)

    def learn_record(self, *args: Any, **options: Any) -> Learned:
        """As the tree does."""
        return self._tree.learn_record(*args, **options)

    def learn_many(self, examples: list[Any]) -> int:
        """As the tree does."""
        return self._tree.learn_many(examples)

    def forget(self, label: str) -> int:
        """As the tree does."""
        return self._tree.forget(label=label)

    def consolidate(self, epochs: int) -> None:
        """As the tree does."""
        self._tree.consolidate(epochs)

    def stats(self) -> dict[str, LabelStats]:
        """As the tree does."""
        return self._tree.stats()

    def predict(self, *args: Any, **options: Any) -> Any:
        """As the tree does."""
        return self._tree.predict(*args, **options)

    def labels(self) -> list[str]:
        """As the tree does."""
        return self._tree.labels

    def size(self) -> int:
        """Examples stored."""
        return len(self._tree)

    def fingerprint(self) -> str:
        """Of the model: an edge must have the same."""
        return self._tree.backbone.spec.fingerprint

    def health(self) -> list[Health]:
        """As the tree does."""
        return self._tree.health()

    def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node."""
        assert isinstance(self._tree.leaves, OnRay)
        self._tree.leaves.migrate(leaf, node)

    def close(self) -> None:
        """Let every leaf write its checkpoint and go."""
        self._tree.close()


class ClusterClassifier:
    """A tree on a cluster, with the calls of `TreeClassifier` for images and records."""

    def __init__(self, actor: Any) -> None:
        self._ray, self._actor = import_ray(), actor

    def _call(self, kind: str, method: str, *args: Any, **options: Any) -> Any:
        remote = getattr(self._actor, method).options(concurrency_group=kind).remote
        return self._ray.get(remote(*args, **options))

    def learn_one(
        self,
        image: ImageSource,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """Learn one labelled image; it is durable when this returns."""
        sent = load_image(image)
        told = {"candidates": candidates, "key": key}
        found: Learned = self._call("learn", "learn_one", sent, label, **told)
        return found

    def learn_record(
        self,
        record: bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere."""
        told = {"candidates": candidates, "key": key}
        found: Learned = self._call("learn", "learn_record", record, label, **told)
        return found

    def learn_many(
        self, examples: Iterable[tuple[ImageSource, str] | tuple[ImageSource, str, str | None]]
    ) -> int:
        """`learn_one` for each (image, label) or (image, label, key); leaves work side by side."""
        rest, count = iter(examples), 0
        while some := [(load_image(image), *told) for image, *told in islice(rest, TOGETHER)]:
            count += int(self._call("learn", "learn_many", some))
        return count

    def forget(self, *, label: str) -> int:
        """Remove every example of a label, for good, from every leaf; returns how many."""
        return int(self._call("learn", "forget", label))

    def consolidate(self, epochs: int = 10) -> None:
        """Train every leaf offline over its own memory, one after the other."""
        self._call("learn", "consolidate", epochs)

    def stats(self) -> dict[str, LabelStats]:
        """Per label: examples of all leaves, and the means of what they know by their examples."""
        found: dict[str, LabelStats] = self._call("learn", "stats")
        return found

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = 1.0
    ) -> Any:
        """A `TreePrediction` for one image, a list of them for a list."""
        many = isinstance(images, list | tuple)
        sent = [load_image(image) for image in (images if many else [images])]
        found: list[TreePrediction] = self._call(
            "ask", "predict", sent, labels, threshold=threshold
        )
        return found if many else found[0]

    @property
    def labels(self) -> list[str]:
        """Every label learned."""
        found: list[str] = self._call("ask", "labels")
        return found

    @property
    def fingerprint(self) -> str:
        """Of the model: an edge must have the same."""
        return str(self._call("ask", "fingerprint"))

    def __len__(self) -> int:
        """Examples stored, once all that is on its way has been learned."""
        return int(self._call("learn", "size"))

    def health(self) -> list[Health]:
        """How each leaf is."""
        found: list[Health] = self._call("control", "health")
        return found

    def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node."""
        self._call("control", "migrate", leaf, node)

    def down(self) -> None:
        """End the tree on the cluster; its folder stays, with all that it learned."""
        self._call("control", "close")
        self._ray.kill(self._actor)


def up(
    folder: str | Path,
    *,
    address: str | None = None,
    model: str = "embedded",
    capacity: int | None = None,
    near: int = 1,
    cpus: float = 1.0,
) -> ClusterClassifier:
    """Start a tree on a cluster; `address` is as `ray.init` takes it, None: a cluster here."""
    ray = import_ray()
    _connect(ray, address)
    host = ray.remote(
        num_cpus=cpus,
        concurrency_groups=AT_ONCE,
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
    )(RouterHost)
    try:
        actor = host.remote(str(Path(folder).resolve()), model, capacity, near, cpus)
    except ValueError as error:  # the name is taken
        raise AnytimeError(f"A tree runs on this cluster already: {error}") from error
    made = ClusterClassifier(actor)
    try:
        made.health()  # waits until every leaf is there
    except ray.exceptions.RayActorError as error:
        raise AnytimeError(f"The router did not start: {error}") from error
    return made


def connect(address: str | None = "auto") -> ClusterClassifier:
    """The tree that runs on a cluster."""
    ray = import_ray()
    _connect(ray, address)
    try:
        return ClusterClassifier(ray.get_actor(NAME, namespace=NAMESPACE))
    except ValueError as error:
        raise AnytimeError(
            "No tree runs on this cluster: start one with `anytimecl scale up`."
        ) from error


def _connect(ray: Any, address: str | None) -> None:
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, namespace=NAMESPACE)
    except (ConnectionError, ValueError) as error:
        raise AnytimeError(f"There is no Ray cluster at {address!r}: {error}") from error
