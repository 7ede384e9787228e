"""The Python client against a real server."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
import threading
import time
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.serve.conftest import READ, TOKENS, WRITE, png, running

from anytimecl import AnytimeError, Client
from anytimecl.client import AsyncClient, ServiceError
from anytimecl.client._folder import SUFFIXES
from anytimecl.images import is_image_name
from anytimecl.serve.tokens import AccessTokens


def test_everything_that_a_client_does(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png(1))
    with running(None, AccessTokens({})) as server:
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
            assert not isinstance(answer, ServiceError)
            assert answer.label == expected.label
            assert answer.probability == pytest.approx(expected.probability)
            assert len(answer.probabilities) == 1
        job = client.consolidate(epochs=2, pause=0.05)
        assert (job.state, job.done, job.over) == ("done", job.steps, True)
        assert client.forget(label="a/b & c?") == 1
        assert client.forget(example_id=lesson.id) == 1
        assert client.stats()["examples"] == 0


def test_errors_are_the_service_s_own_words() -> None:
    with running(None, AccessTokens({})) as server:
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
    with running(None, AccessTokens({}), per_second=2.0, burst=1) as server:
        patient = Client(server.url)
        assert [patient.stats()["examples"] for _ in range(3)] == [0, 0, 0]
        hasty = Client(server.url, patience=0)
        with pytest.raises(ServiceError, match="too often") as error:  # the bucket is empty
            hasty.stats()
        assert error.value.status == 429
        assert error.value.retry_after == 1


def test_what_is_no_image_label_or_example_is_named_before_it_is_sent(tmp_path: Path) -> None:
    client, image = Client("http://127.0.0.1:1"), png(1)  # where nobody listens
    wrong: Any = {
        r"write \['cat'\]": lambda: client.predict(image, "cat"),
        "no labels": lambda: client.predict(image, []),
        "position 1 is empty": lambda: client.predict(image, ["cat", " "]),
        "not text but int: 5": lambda: client.learn(image, 5),  # type: ignore[arg-type]
        "A key is text, not int": lambda: client.learn(image, "cat", key=5),  # type: ignore[arg-type]
        r"\(image, label, key\), not": lambda: client.learn_many([(image, "cat")]),  # type: ignore[list-item]
        "the path or the bytes of its file, not NoneType": lambda: client.predict(None),  # type: ignore[call-overload]
        r"write \['cats'\]": lambda: client.grant("camera", "write", "cats"),
        "cannot read image '.*none.png': No such file": lambda: client.predict(
            tmp_path / "none.png"
        ),
        "A key has printable ASCII": lambda: client.learn(image, "cat", key="\u043a"),
        "A token has printable ASCII": lambda: Client(client.url, token="two\nlines"),
        "no folder of their label": lambda: list(client.learn_folder(tmp_path)),
    }
    (tmp_path / "1.heic").write_bytes(b"")
    for told, call in wrong.items():
        with pytest.raises((AnytimeError, TypeError), match=told):
            call()
    assert all(is_image_name(f"1{suffix}") for suffix in SUFFIXES)


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://x", "http://", "", "http://x:y", "http://x:99999", "http://[::1"],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ServiceError, match="An address looks like"):
        Client(url)


class Flaky:
    """A server that closes so many connections without an answer, then answers."""

    def __init__(self, failures: int, answer: bytes = b'{"forgotten": 1}') -> None:
        self.asked: list[bytes] = []
        self._failures, self._answer = failures, answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    self.asked.append(connection.recv(100_000))
                    if len(self.asked) > self._failures:
                        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(self._answer)}\r\n\r\n"
                        connection.sendall(head.encode() + self._answer)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a service that is away is cut short; waits it asks for are kept."""
    keep = time.sleep
    monkeypatch.setattr(
        "anytimecl.client._wire.time.sleep", lambda wait: keep(wait if wait >= 0.9 else 0.01)
    )


def test_what_is_lost_on_the_way_is_sent_again_with_the_same_key() -> None:
    flaky = Flaky(3, b'{"id": 1, "label": "cat", "repeated": false}')
    assert Client(flaky.url).learn(png(1), "cat").id == 1
    keys = {re.search(rb"Idempotency-Key: (\w+)", asked)[1] for asked in flaky.asked}  # type: ignore[index]
    assert (len(flaky.asked), len(keys)) == (4, 1)
    flaky.close()


def test_another_server_at_the_address_is_told() -> None:
    flaky = Flaky(0, b"<html>")
    with pytest.raises(ServiceError, match="is no JSON"):
        Client(flaky.url).stats()
    assert len(flaky.asked) == 1
    flaky.close()


def test_a_token_may_come_from_a_file_with_a_line_break() -> None:
    with running(None, TOKENS) as server:
        assert Client(server.url, token=f"{READ}\n").stats()["examples"] == 0


def test_a_list_has_an_answer_for_each_even_if_none_is_an_image() -> None:
    with running(None, AccessTokens({})) as server:
        client = Client(server.url)
        found = client.predict([b"1", b"22"], ["cat"])
        assert [type(one) for one in found] == [ServiceError, ServiceError]
        assert "length 1)" in str(found[0])
        assert "length 2)" in str(found[1])
        assert client.predict([], ["cat"]) == []
        with pytest.raises(ServiceError, match="Nothing is learned yet"):
            client.predict([b"1"])


def test_what_cannot_be_repeated_is_sent_once() -> None:
    flaky = Flaky(1)
    with pytest.raises(ServiceError, match="does not answer"):
        Client(flaky.url).forget(example_id=1)
    assert len(flaky.asked) == 1
    flaky.close()


def test_retries_end() -> None:
    flaky = Flaky(99)
    with pytest.raises(ServiceError, match="does not answer"):
        Client(flaky.url, retries=2).stats()
    assert len(flaky.asked) == 3
    flaky.close()


def test_the_async_client_does_the_same(tmp_path: Path) -> None:
    async def use(url: str) -> None:
        async with AsyncClient(url, connections=4) as client:
            [one, two] = await asyncio.gather(
                client.learn(png(1), "cat", key="k"), client.learn_one(png(2), "dog")
            )
            assert {one.id, two.id} == {1, 2}
            answers = await asyncio.gather(*(client.predict(png(n)) for n in range(6)))
            assert {answer.label for answer in answers} <= {"cat", "dog"}
            good, bad = await client.predict([png(1), b"no image"])
            assert not isinstance(good, ServiceError)
            assert isinstance(bad, ServiceError)
            assert [told.state for told in await client.learn_many([(png(3), "cat", "m")])] == [
                "learned"
            ]
            assert await client.labels() == {"cat": 2, "dog": 1}
            job = await client.consolidate(pause=0.01)
            assert [found.id for found in await client.jobs()] == [job.id]
            assert (await client.job(job.id)).over
            with pytest.raises(ServiceError, match="is over"):
                await client.cancel(job.id)
            assert await client.forget(label="cat") == 2
            assert (await client.stats())["examples"] == 1

    with running(None, AccessTokens({})) as server:
        asyncio.run(use(server.url))


def put(folder: Path, **files: bytes) -> None:
    for name, data in files.items():
        label, _, number = name.partition("_")
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number}.png").write_bytes(data)


def test_a_folder_is_streamed_and_a_second_time_nothing_is_taught(tmp_path: Path) -> None:
    put(tmp_path, cat_1=png(1), cat_2=png(2), dog_1=png(3), dog_2=b"no image", dog_3=png(4))
    (tmp_path / "cat" / "notes.txt").write_text("no image either")
    with running(None, AccessTokens({})) as server:
        client = Client(server.url)
        first = list(client.learn_folder(tmp_path, batch=2))
        assert [(one.file, one.label, one.state) for one in first] == [
            ("cat/1.png", "cat", "learned"), ("cat/2.png", "cat", "learned"),
            ("dog/1.png", "dog", "learned"), ("dog/2.png", "dog", "refused"),
            ("dog/3.png", "dog", "learned"),
        ]  # fmt: skip
        again = list(client.learn_folder(tmp_path))
        assert [one.state for one in again] == [
            "repeated", "repeated", "repeated", "refused", "repeated",
        ]  # fmt: skip
        assert client.labels() == {"cat": 2, "dog": 2}
        told = dict(client.predict_folder(tmp_path, batch=2))
        assert [type(one).__name__ for one in told.values()] == [
            "Answer", "Answer", "Answer", "ServiceError", "Answer",
        ]  # fmt: skip
        with pytest.raises(ServiceError, match="no folder"):
            list(client.learn_folder(tmp_path / "nowhere"))


def test_a_batch_that_is_too_large_is_sent_in_parts(tmp_path: Path) -> None:
    put(tmp_path, cat_1=png(1), cat_2=png(2), cat_3=png(3))
    with running(None, AccessTokens({}), upload_bytes=2 * len(png(1)) * 4 // 3 + 1000) as server:
        client = Client(server.url)
        found = list(client.learn_folder(tmp_path))
        assert [one.state for one in found] == ["learned"] * 3
        assert [name for name, _ in client.predict_folder(tmp_path)] == [one.file for one in found]


def test_labels_of_folders_in_other_encodings(tmp_path: Path) -> None:
    name, other = os.fsencode(tmp_path) + b"/\xff", unicodedata.normalize("NFD", "\u00e9")
    os.mkdir(name)
    Path(os.fsdecode(name), "1.png").write_bytes(png(1))
    put(tmp_path, **{f"{other}_1": png(2)})
    with running(None, AccessTokens({})) as server:
        client = Client(server.url)
        found = {one.label: one for one in client.learn_folder(tmp_path)}
        assert {label: one.state for label, one in found.items()} == {
            "\udcff": "refused", "\u00e9": "learned",
        }  # fmt: skip
        assert found["\udcff"].detail == "the name of its folder is not UTF-8: rename it"
        watched = hashlib.sha256(hashlib.sha256(png(2)).digest() + "\u00e9".encode())
        assert server.engine.classifier.memory.has_key(watched.hexdigest()) == found["\u00e9"].id


def test_a_folder_on_an_event_loop(tmp_path: Path) -> None:
    put(tmp_path, cat_1=png(1), dog_1=png(2))

    async def work(url: str) -> tuple[list[str], list[str]]:
        async with AsyncClient(url) as client:
            taught = [one.state async for one in client.learn_folder(tmp_path, batch=1)]
            asked = [name async for name, _ in client.predict_folder(tmp_path)]
            return taught, asked

    with running(None, AccessTokens({})) as server:
        assert asyncio.run(work(server.url)) == (
            ["learned", "learned"], ["cat/1.png", "dog/1.png"]
        )  # fmt: skip
