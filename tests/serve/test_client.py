"""The Python client against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import helpers
from tests.serve.conftest import READ, TOKENS, WRITE, png, running

from anytimecl import AnytimeError, Client
from anytimecl.client import ServiceError
from anytimecl.serve.tokens import Tokens


def test_everything_that_a_client_does(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png(1))
    with running(None, Tokens({})) as server:
        client = Client(server.url)
        first = client.predict(file, ["cat", "dog"])
        assert first.tuned == {"cat": None, "dog": None}
        assert sum(first.probabilities.values()) == pytest.approx(1, abs=1e-4)
        lesson = client.learn(file, "cat", key="k")
        assert client.learn(str(file), "cat", key="k") == type(lesson)(lesson.id, "cat", True)
        client.learn(png(2), "a/b & c?", candidates=["a/b & c?", "cat"])
        assert client.labels() == {"cat": 1, "a/b & c?": 1}
        two = client.predict([png(1), file], top_k=1)
        expected = server.engine.classifier.predict(helpers.picture(1))
        for answer in two:
            assert answer.label == expected.label
            assert answer.probability == pytest.approx(expected.probability)
            assert len(answer.probabilities) == 1
        job = client.consolidate(epochs=2, pause=0.05)
        assert (job.state, job.done, job.over) == ("done", job.steps, True)
        assert client.forget(label="a/b & c?") == 1
        assert client.forget(example_id=lesson.id) == 1
        assert client.stats()["examples"] == 0


def test_errors_are_the_service_s_own_words() -> None:
    with running(None, Tokens({})) as server:
        client = Client(server.url)
        with pytest.raises(ServiceError, match="cannot read image") as error:
            client.learn(b"no image", "cat")
        assert error.value.status == 422
        assert isinstance(error.value, AnytimeError)
        with pytest.raises(ServiceError, match="no example 5") as error:
            client.forget(example_id=5)
        assert error.value.status == 404
        with pytest.raises(ServiceError, match="Nothing is learned yet"):
            client.consolidate()
        with pytest.raises(ServiceError, match="either"):
            client.forget()


def test_tokens() -> None:
    with running(None, TOKENS) as server:
        with pytest.raises(ServiceError, match="Send a token"):
            Client(server.url).stats()
        reader = Client(server.url, token=READ)
        assert reader.stats()["examples"] == 0
        with pytest.raises(ServiceError, match="only read"):
            reader.learn(png(1), "cat")
        assert Client(server.url, token=WRITE).learn(png(1), "cat").id == 1


def test_who_is_told_to_wait_waits_and_asks_again() -> None:
    with running(None, Tokens({}), per_second=2.0, burst=1) as server:
        patient = Client(server.url)
        assert [patient.stats()["examples"] for _ in range(3)] == [0, 0, 0]
        hasty = Client(server.url, patience=0)
        with pytest.raises(ServiceError, match="too often") as error:  # the bucket is empty
            hasty.stats()
        assert error.value.status == 429
        assert error.value.retry_after == 1


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ServiceError, match="An address looks like"):
        Client(url)
