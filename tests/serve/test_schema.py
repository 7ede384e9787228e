"""The OpenAPI description is true: whatever is sent, no 5xx and nothing it does not announce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests import helpers
from tests.serve.conftest import TOKENS, WRITE, Running, bearer, png, running, text
from tests.serve.test_label_studio import CONFIG

EXAMPLES = 25  # of each operation, of each kind

# What no schema can say: these are images, that is an interface, and so the memory was made.
schemathesis.openapi.format("label-studio-config", st.just(CONFIG))
schemathesis.openapi.format("model-fingerprint", st.just(helpers.model().spec.fingerprint))
schemathesis.openapi.format("codec-name", st.just(helpers.settings().codec))
schemathesis.openapi.format("byte", st.sampled_from([text(1), text(2)]))
schemathesis.openapi.format("binary", st.sampled_from([png(1), png(2)]))
schemathesis.openapi.media_type("image/png", st.sampled_from([png(1), png(2)]))
schemathesis.openapi.media_type("image/jpeg", st.sampled_from([png(1), png(2)]))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(None, TOKENS, per_second=1e9, burst=10**9, learn_waiting=10**6) as made:
        yield made


@pytest.fixture(scope="module")
def described(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


OPERATIONS = """
POST /v1/predict
POST /v1/learn
POST /v1/records
GET /v1/examples
GET /v1/examples/{example}/thumbnail
DELETE /v1/examples/{example}
GET /v1/labels
DELETE /v1/labels/{label}
GET /v1/stats
POST /v1/consolidate
GET /v1/jobs/{job}
GET /v1/jobs/{job}/events
GET /label-studio/health
POST /label-studio/setup
POST /label-studio/predict
POST /label-studio/webhook
GET /healthz
GET /readyz
GET /metrics
""".strip().splitlines()
ENDLESS = "GET /v1/events"  # test_server.py listens to it


def test_every_operation_is_tried(described: Any) -> None:
    found = {
        f"{method.upper()} {path}"
        for path, methods in described.raw_schema["paths"].items()
        for method in methods
    }
    assert found == {*OPERATIONS, ENDLESS}


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_description_is_true(described: Any, operation: str, mode: GenerationMode) -> None:
    method, path = operation.split()
    chosen = described[path][method]
    if mode is GenerationMode.NEGATIVE and not _takes_something(chosen):
        return  # there is nothing to get wrong

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=chosen.as_strategy(generation_mode=mode))
    def try_it(case: schemathesis.Case) -> None:
        # In a form everything is text, so a number for a text cannot even be sent; and of several
        # files schemathesis sends the bytes without a file name, which makes them text as well.
        form = case.media_type == "multipart/form-data"
        excluded = [negative_data_rejection, positive_data_acceptance] if form else []
        case.call_and_validate(headers=bearer(WRITE), excluded_checks=excluded, timeout=60)

    try_it()


def _takes_something(operation: Any) -> bool:
    parameters = operation.definition.raw.get("parameters", [])
    return bool(parameters or operation.definition.raw.get("requestBody"))
