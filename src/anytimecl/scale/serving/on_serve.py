"""Serving a memory's predictions on Ray Serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anytimecl.errors import AnytimeError, StoreError
from anytimecl.memory.opening import stored_meta
from anytimecl.scale.leaf_host import connect_ray, import_ray
from anytimecl.scale.serving.hosts import (
    BATCH,
    AnswerHost,
    EncoderHost,
    Encoders,
    KeeperHost,
    ServedMemory,
    tokens_of,
)
from anytimecl.serve.options import Options
from anytimecl.serve.server import check_binding

NAME = "anytimecl"
WAIT = 0.002  # seconds that an encoder waits for more images while it has fewer than a batch
ONGOING = 16  # questions that a replica works on at once; above half of it, there are to be more
Replicas = tuple[int, int]  # at least, at most


def import_serve() -> Any:
    """Import Ray Serve; raises an error with advice if it is missing."""
    import_ray()
    try:
        from ray import serve
    except ImportError as error:
        raise AnytimeError(
            f"Predictions on Ray need {error.name}: pip install -c constraints.txt '.[scale]'"
        ) from error
    return serve


class Planned(NamedTuple):
    """The deployment plan."""

    served: ServedMemory
    encoders: Replicas
    answerers: Replicas
    encoder: dict[str, float]  # what each asks of its node
    answerer: dict[str, float]


def planned(args: Mapping[str, Any]) -> Planned:
    """Parse and validate the arguments of `application`."""
    given = dict(args)
    encoders, answerers = (
        _replicas(str(given.pop(name, "1"))) for name in ("encoders", "answerers")
    )
    try:
        encoder = {
            "num_cpus": float(given.pop("encoder_cpus", 1)),
            "num_gpus": float(given.pop("encoder_gpus", 0)),
        }
        answerer = {"num_cpus": float(given.pop("answerer_cpus", 1))}
    except (TypeError, ValueError) as error:
        raise AnytimeError(f"Cores and GPUs are numbers: {error}.") from error
    try:
        served = ServedMemory(str(given.pop("memory")), **given)
    except (KeyError, TypeError) as error:
        known = [each.name for each in dataclasses.fields(ServedMemory)]
        raise AnytimeError(
            f"{error} is missing or not known; there are memory, encoders, answerers, "
            f"encoder_cpus, encoder_gpus, answerer_cpus, {', '.join(known[1:])}."
        ) from error
    return Planned(served, encoders, answerers, encoder, answerer)


def application(args: dict[str, Any]) -> Any:
    """What Ray Serve runs, from the arguments of a configuration file or of `serve_memory`.

    `memory` is a folder that every node can reach. `model`, `tokens`, `guarded`, `every` and
    `threads` are as `ServedMemory` has them; `encoders` and `answerers` are numbers of replicas,
    "1" or "1:8"; `encoder_cpus`, `encoder_gpus` and `answerer_cpus` are what each asks of its node.
    """
    served, encoders, answerers, encoder, answerer = planned(args)
    serve = import_serve()
    ray = import_ray()

    class Encoder(EncoderHost):
        """Batches images of all answering replicas."""

        @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)  # type: ignore[untyped-decorator]
        async def encode(self, pixels: list[Any]) -> list[Any]:
            return await self.encode_batch(pixels)

    class Keeper(KeeperHost):
        """Watches the memory, for all replicas."""

        def __init__(self, served: ServedMemory) -> None:
            super().__init__(served, ray.put)

    @serve.ingress()
    class Answerer(AnswerHost):
        """The HTTP API."""

        async def __init__(  # type: ignore[misc]  # Serve awaits it
            self, served: ServedMemory, encoders: Any, keeper: Any
        ) -> None:
            from ray.serve.exceptions import BackPressureError, RayServeException

            lost = (ConnectionError, ray.exceptions.RayError, RayServeException)
            reached = Encoders(encoders, busy=(BackPressureError,), lost=lost)
            AnswerHost.__init__(self, served, reached, keeper)

            async def fetch(shared: Any) -> Any:
                return await shared

            await self.begin(fetch)

        def __serve_build_asgi_app__(self) -> Any:
            return self.app()

    def deployed(host: Any, count: Replicas, resources: dict[str, float], **options: Any) -> Any:
        if count[0] == count[1]:
            options["num_replicas"] = count[0]
        else:
            options["autoscaling_config"] = {
                "min_replicas": count[0],
                "max_replicas": count[1],
                "target_ongoing_requests": ONGOING / 2,
            }
        return serve.deployment(
            host,
            name=host.__name__,
            ray_actor_options=resources,
            logging_config={"enable_access_log": False},  # the service has one of its own
            **options,
        )

    keeper = deployed(Keeper, (1, 1), {"num_cpus": 0.1}).bind(served)
    at_encoders = deployed(
        Encoder,
        encoders,
        encoder,
        max_ongoing_requests=2 * BATCH,  # a batch in the trunk, and the next
        max_queued_requests=Options.encode_waiting,
    ).bind(served, "cuda" if encoder["num_gpus"] else "cpu")
    return deployed(Answerer, answerers, answerer, max_ongoing_requests=ONGOING).bind(
        served, at_encoders, keeper
    )


def _replicas(text: str) -> Replicas:
    """`2`: two; `1:8`: from one to eight, as many as there is work for.

    >>> _replicas("2"), _replicas("1:8")
    ((2, 2), (1, 8))
    """
    low, _, high = text.partition(":")
    try:
        found = int(low), int(high or low)
    except ValueError:
        found = 0, 0
    if not 1 <= found[0] <= found[1]:
        raise AnytimeError(f"A number of replicas is such as 2, or 1:8 for one to eight: {text!r}.")
    return found


def serve_memory(
    memory: str | Path,
    *,
    address: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    tokens: Path | None = None,
    **args: Any,
) -> None:
    """Serve a memory's predictions on a cluster, at `host` and `port` of its nodes.

    Returns when replicas answer. `args` are those of `application`.
    """
    known = tokens_of(tokens)
    check_binding(host, known)
    serve = import_serve()
    told = {
        "memory": str(Path(memory).resolve()),
        "tokens": None if tokens is None else str(tokens.resolve()),
        "guarded": bool(known),
        **args,
    }
    planned(told)
    if stored_meta(Path(memory)) is None:
        raise StoreError(f"There is no memory in {memory}.")
    connect_ray(import_ray(), address)
    made = application(told)
    serve.start(http_options={"host": host, "port": port}, proxy_location="EveryNode")
    try:
        serve.run(made, name=NAME, route_prefix="/")
    except RuntimeError as error:
        raise AnytimeError(f"The replicas did not start: {error}") from error


def stop_serving() -> None:
    """End what `serve_memory` began on the cluster that this is connected to."""
    import_serve().delete(NAME)
