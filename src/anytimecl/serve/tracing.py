"""OpenTelemetry traces, for those who ask for them.

Without `--traces` there is no tracer and nothing is imported: a span is then one comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anytimecl.errors import AnytimeError

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_tracer: Tracer | None = None


def set_up(tracer: Tracer | None) -> None:
    """From now on spans go to this tracer; None: nowhere."""
    global _tracer
    _tracer = tracer


def export_by_environment() -> None:
    """To where the `OTEL_...` variables say; without any, to a collector on this machine."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise AnytimeError(
            f"Traces need {error.name}: pip install -c constraints.txt '.[traces]'"
        ) from error
    named = Resource.create({SERVICE_NAME: "anytimecl"}).merge(Resource.create())
    provider = TracerProvider(resource=named)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_up(provider.get_tracer("anytimecl"))


def on() -> bool:
    """Whether anybody wants spans."""
    return _tracer is not None


@contextmanager
def span(name: str, **about: Any) -> Iterator[None]:
    """A span inside the one that is open, if anybody wants it.

    >>> with span("nothing"):
    ...     on()
    False
    """
    if _tracer is None:
        yield
        return
    with _tracer.start_as_current_span(name, attributes=about):
        yield


@contextmanager
def request_span(headers: dict[str, str], **about: Any) -> Iterator[Any]:
    """The span of a whole request, below the client's own if it sent one (W3C `traceparent`)."""
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    assert _tracer is not None
    parent = TraceContextTextMapPropagator().extract(headers)
    with _tracer.start_as_current_span(
        "request", context=parent, kind=SpanKind.SERVER, attributes=about
    ) as made:
        yield made
