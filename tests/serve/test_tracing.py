"""Traces: what is in them, and that nothing of it is loaded where nobody asks for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.serve.conftest import Service, text

from anytimecl.serve import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracing.set_up(provider.get_tracer("test"))
    yield kept
    tracing.set_up(None)


def test_a_lesson_is_one_trace_below_the_client_s(
    service: Service, spans: InMemorySpanExporter
) -> None:
    asked = {"image": text(1), "label": "a private label"}
    sent = {"traceparent": PARENT, "X-Request-ID": "mine"}
    assert service.client.post("/v1/learn", json=asked, headers=sent).status_code == 200
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"POST /v1/learn", "decode", "encode", "learn"}
    whole = found["POST /v1/learn"]
    assert whole.attributes is not None
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["anytimecl.request"] == "mine"
    assert f"{whole.context.trace_id:032x}" == PARENT.split("-")[1]
    for name in ("decode", "encode", "learn"):
        parent = found[name].parent
        assert parent is not None
        assert parent.span_id == whole.context.span_id
    assert "private" not in "".join(span.to_json() for span in found.values())


def test_nothing_is_loaded_unless_asked_for() -> None:
    code = (
        "import sys, anytimecl.serve.app, anytimecl.serve.tracing as tracing\n"
        "assert not tracing.on()\n"
        "loaded = ('opentelemetry.sdk', 'opentelemetry.exporter')  # FastAPI loads the API itself\n"
        "sys.exit(any(name.startswith(loaded) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Exception, match=r"pip install -c constraints.txt '.\[traces\]'"):
        tracing.export_by_environment()
