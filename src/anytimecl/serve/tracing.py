"""OpenTelemetry traces, if enabled.

Without `--traces` there is no tracer and nothing is imported: a span costs one comparison.
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
    """Send spans to this tracer; None: disable."""
    global _tracer
    _tracer = tracer


def export_by_environment() -> None:
    """Export as the `OTEL_...` variables say; by default to a local collector."""
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
    """Whether traces are enabled."""
    return _tracer is not None


@contextmanager
def span(name: str, **about: Any) -> Iterator[None]:
    """A child span, if traces are enabled.

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
    """Span of a whole request, a child of the client's if it sent a `traceparent` (W3C)."""
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    assert _tracer is not None
    parent = TraceContextTextMapPropagator().extract(headers)
    with _tracer.start_as_current_span(
        "request", context=parent, kind=SpanKind.SERVER, attributes=about
    ) as made:
        yield made
