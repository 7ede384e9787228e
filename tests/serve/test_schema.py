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
from tests.serve.conftest import Running, bearer, png, running, text
from tests.serve.test_label_studio import CONFIG

from anytimecl.serve.tokens import AccessTokens

ADMIN = "a token that may do everything"
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    tokens = AccessTokens({ADMIN: "admin"})
    limits = {"per_second": 1e9, "burst": 10**9, "learn_waiting": 10**6}
    with running(None, tokens, tmp_path_factory.mktemp("memories"), **limits) as made:
        yield made


@pytest.fixture(scope="module")
def described(server: Running) -> Any:
    found = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    rejection = found.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "413"]  # that is a refusal, too
    return found


OPERATIONS = """
POST /v1/predict
POST /v1/learn
POST /v1/learn/batch
POST /v1/records
GET /v1/examples
POST /v1/examples/like
POST /v1/order
GET /v1/examples/{example}/thumbnail
POST /v1/examples/{example}/label
POST /v1/labels/rename
POST /v1/labels/merge
POST /v1/undo
GET /v1/choices
POST /v1/choices
GET /v1/export
DELETE /v1/examples/{example}
GET /v1/labels
DELETE /v1/labels/{label}
GET /v1/stats
POST /v1/consolidate
GET /v1/jobs
GET /v1/jobs/{job}
DELETE /v1/jobs/{job}
GET /v1/jobs/{job}/events
GET /v1/changes
GET /v1/audit
GET /v1/backup
GET /label-studio/health
POST /label-studio/setup
POST /label-studio/predict
POST /label-studio/webhook
GET /healthz
GET /readyz
GET /metrics
""".strip().splitlines()
ENDLESS = "GET /v1/events"  # test_server.py listens to it
NAMED = """
POST /v1/memories/{memory}/predict
POST /v1/memories/{memory}/learn
GET /v1/memories/{memory}/labels
""".strip().splitlines()
SERVICE = """
GET /v1/memories
POST /v1/memories
GET /v1/memories/{memory}
DELETE /v1/memories/{memory}
GET /v1/tokens
POST /v1/tokens
DELETE /v1/tokens/{name}
""".strip().splitlines()


def test_every_operation_is_tried(described: Any) -> None:
    found = {
        f"{method.upper()} {path}"
        for path, methods in described.raw_schema["paths"].items()
        for method in methods
    }
    # Those of a memory by its name are the same handlers: some of them are tried.
    named = {one for one in found if " /v1/memories/{memory}/" in one}
    assert {one.replace("/memories/{memory}", "") for one in named} == {
        one for one in {*OPERATIONS, ENDLESS} if " /v1/" in one
    }
    assert found - named == {*OPERATIONS, *SERVICE, ENDLESS}
    assert named >= set(NAMED)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", [*OPERATIONS, *SERVICE, *NAMED])
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
        case.call_and_validate(headers=bearer(ADMIN), excluded_checks=excluded, timeout=60)

    try_it()


def _takes_something(operation: Any) -> bool:
    parameters = operation.definition.raw.get("parameters", [])
    return bool(parameters or operation.definition.raw.get("requestBody"))
