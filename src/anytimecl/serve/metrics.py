"""Metrics for Prometheus."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from anytimecl.serve.engine import Engine

# Requests rejected before they were processed; 422 is not among them.
REFUSALS = frozenset({401, 403, 408, 413, 415, 429})
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Metrics with a registry of their own, so several services can be in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Histogram(
            "anytimecl_request_seconds", "From the head of a request to the end of its answer.",
            ("method", "route", "status"), buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.refused = Counter(
            "anytimecl_refused_total",
            "Requests turned away, by status: no token (401), not allowed (403), too slow (408), "
            "too large (413), of a wrong kind (415), too many (429).",
            ("why",), registry=registry,
        )  # fmt: skip
        self.batch_images = Histogram(
            "anytimecl_encode_batch_images", "Images that met in the trunk.",
            buckets=(1, 2, 4, 8, 16, 32), registry=registry,
        )  # fmt: skip
        self.encode = Histogram(
            "anytimecl_encode_seconds", "The trunk, for a batch.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.learn = Histogram(
            "anytimecl_learn_seconds", "One example, from its turn until it is durable.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.steps = Counter(
            "anytimecl_steps_total", "Examples learned by this process.", registry=registry
        )
        gauge = functools.partial(Gauge, registry=registry)
        self._queue = gauge(
            "anytimecl_queue", "What waits: images to be decoded, images, and changes.", ("of",)
        )
        self._examples = gauge("anytimecl_examples", "Examples stored.", ("memory",))
        self._labels = gauge("anytimecl_labels", "Labels with an example.", ("memory",))
        self._disk = gauge("anytimecl_memory_bytes", "The memory on disk.", ("memory",))
        self._free = gauge("anytimecl_disk_free_bytes", "Left on the memory's disk.")
        self._resident = gauge("anytimecl_resident_bytes", "RAM of this process.")
        self._accuracy = gauge(
            "anytimecl_accuracy_before_update",
            "Share of the latest examples that each model had right before it learned them.",
            ("memory", "model"),
        )
        self._open = gauge("anytimecl_open_memories", "Memories in RAM.")
        self._listeners = gauge("anytimecl_listeners", "Pages that listen.")
        self._telling = threading.Lock()  # one scrape at a time: gauges are cleared in between

    def observe_batch(self, images: int, seconds: float) -> None:
        """Record a batch of the trunk."""
        self.batch_images.observe(images)
        self.encode.observe(seconds)

    def text(self, opened: Mapping[str, Engine]) -> bytes:
        """The current metrics as text; gauges of a memory only while it is open."""
        with self._telling:
            intake = next(iter(opened.values())).intake
            self._queue.labels("decoding").set(len(intake.decoder))
            self._queue.labels("images").set(len(intake.encoder))
            self._queue.labels("changes").set(max(len(engine.turns) for engine in opened.values()))
            self._listeners.set(sum(len(engine.broadcast) for engine in opened.values()))
            self._resident.set(resident_bytes())
            self._open.set(len(opened))
            for gauge in (self._examples, self._labels, self._disk, self._accuracy):
                gauge.clear()  # drops memories that were closed
            for name, engine in opened.items():
                self._tell(name, engine)
            free = [engine.disk_free() for engine in opened.values()]
            if known := [each for each in free if each is not None]:
                self._free.set(min(known))
            return generate_latest(self.registry)

    def _tell(self, name: str, engine: Engine) -> None:
        self._examples.labels(name).set(len(engine.classifier))
        self._labels.labels(name).set(len(engine.classifier.labels))
        self._disk.labels(name).set(engine.disk_bytes())
        accuracy = engine.history.accuracy()
        if accuracy is not None:
            for model, value in zip(("blend", "tuned", "original"), accuracy, strict=True):
                self._accuracy.labels(name, model).set(value)


def resident_bytes() -> int:
    """RAM of this process; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0
    from resource import getpagesize

    return pages * getpagesize()
