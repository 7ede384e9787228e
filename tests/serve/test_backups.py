"""Backups over HTTP while a memory is served, and the trail taken out of it."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import helpers
from tests.serve.conftest import Service, open_tiny, opened, png, running, text
from typer.testing import CliRunner

from anytimecl import AnytimeClassifier
from anytimecl.checkpointer import CHECKPOINT
from anytimecl.cli import app
from anytimecl.client import AsyncClient, Client, ServiceError
from anytimecl.errors import StoreError
from anytimecl.opening import PRIOR
from anytimecl.serve import backups
from anytimecl.serve.backups import Archive
from anytimecl.serve.tokens import AccessTokens
from anytimecl.transfer import copy_memory

OPEN = AccessTokens({})


def unpack(content: bytes, to: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(to, filter="data")


def answers(service: Service) -> bytes:
    asked = {"images": [text(number) for number in range(4)]}
    answer = service.client.post("/v1/predict", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("lives", [1, 2])
def test_what_is_restored_answers_the_same_to_the_bit(tmp_path: Path, lives: int) -> None:
    """With a checkpoint, which is written when a service ends, and without one."""
    for life in range(lives):
        with opened(tmp_path / "memory", OPEN) as service:
            for number in range(3):
                service.learn(10 * life + number, f"label {number}")
            told = service.client.get("/v1/backup")
            assert told.status_code == 200
            assert told.headers["content-type"] == "application/x-tar"
            expected = answers(service)
            service.learn(10 * life + 7, "a later one")  # it is not in the copy
            trail = service.client.get("/v1/audit").text.splitlines()
    unpack(told.content, tmp_path / "copy")
    assert (tmp_path / "copy" / CHECKPOINT).exists() == (lives == 2)
    with opened(tmp_path / "copy", OPEN) as restored:
        assert restored.client.get("/v1/stats").json()["examples"] == 4 * lives - 1
        assert answers(restored) == expected
    assert [json.loads(line)["action"] for line in trail].count("copied") == lives


def test_a_memory_keeps_its_prior(tmp_path: Path) -> None:
    """A model may have been measured anew since: with another prior it would answer otherwise."""
    settings = helpers.settings()
    with AnytimeClassifier.open(
        tmp_path / "memory", model=helpers.measured(), settings=settings
    ) as classifier:
        classifier.learn_one(helpers.picture(1), "cat")
        copy_memory(tmp_path / "memory", tmp_path / "copy")
    assert (tmp_path / "copy" / PRIOR).read_bytes() == (tmp_path / "memory" / PRIOR).read_bytes()


def test_one_at_a_time_and_none_is_left_on_the_disk(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.learn(1, "cat")
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    archive = service.engine.backups.make()
    assert list(made.iterdir()) == []
    assert service.client.get("/v1/backup").status_code == 429
    del archive  # whoever took it has gone
    gc.collect()
    assert service.client.get("/v1/backup").status_code == 200
    assert service.client.get("/v1/export").status_code == 200
    assert list(made.iterdir()) == []


def test_a_copy_that_takes_long_holds_up_no_prediction_and_no_second_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.learn(1, "cat")
    began, let_go, keep = threading.Event(), threading.Event(), backups.copy_memory

    def slowly(*folders: Path) -> None:
        began.set()
        assert let_go.wait(60)
        keep(*folders)

    monkeypatch.setattr(backups, "copy_memory", slowly)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.client.get, "/v1/backup")
        assert began.wait(60)
        for _ in range(4):  # none of them waits for the first
            assert service.client.get("/v1/backup").status_code == 429
        asked = {"images": [text(1)], "labels": ["cat", "dog"]}
        assert service.client.post("/v1/predict", json=asked).status_code == 200
        let_go.set()
        assert first.result(60).status_code == 200


@pytest.mark.parametrize("path", ["backup", "export"])
def test_where_there_is_no_room_it_says_so(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    answer = service.client.get(f"/v1/{path}")
    assert answer.status_code == 503
    assert "TMPDIR" in answer.json()["detail"]


def test_a_memory_in_ram_has_none() -> None:
    with opened(None, OPEN) as service:
        answer = service.client.get("/v1/backup")
        assert answer.status_code == 409
        assert "in RAM alone" in answer.json()["detail"]


def test_clients_and_the_command_line(tmp_path: Path) -> None:
    with running(tmp_path / "first", OPEN, others=tmp_path / "others") as server:
        Client(server.url).create_memory("cats")
        cats = Client(server.url, memory="cats")
        cats.learn(png(1), "tabby")
        cats.backup(tmp_path / "one")
        with pytest.raises(StoreError, match="already"):
            cats.backup(tmp_path / "one")

        async def asynchronously() -> list[str]:
            async with AsyncClient(server.url, memory="cats") as client:
                await client.backup(tmp_path / "two")
                return [act["action"] async for act in client.audit()]

        assert asyncio.run(asynchronously()) == ["learned", "copied", "copied"]

        def run(*words: str) -> str:
            result = CliRunner().invoke(app, ["service", *words, "--url", server.url])
            assert result.exit_code == 0, result.output
            return str(result.output)

        run("backup", str(tmp_path / "three"), "--memory", "cats")
        lines = run("audit", "--memory", "cats").splitlines()
        assert [json.loads(line)["action"] for line in lines] == ["learned"] + 3 * ["copied"]
        assert [json.loads(line)["action"] for line in run("audit").splitlines()] == ["created"]
    for name in ("one", "two", "three"):
        with open_tiny(tmp_path / name) as classifier:
            assert classifier.labels == ["tabby"]


def test_one_that_cannot_be_written_is_not_blamed_on_the_service(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with running(tmp_path / "memory", OPEN) as server:
        client = Client(server.url)
        client.learn(png(1), "cat")
        with pytest.raises(StoreError, match=r"cannot be written to .*file/copy: Not a directory"):
            client.backup(tmp_path / "file" / "copy")


@pytest.mark.parametrize("cut", [0, 600, 5_000])
def test_one_that_is_cut_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    whole = Archive.parts
    monkeypatch.setattr(Archive, "parts", lambda archive: [b"".join(whole(archive))[:cut]])
    with running(tmp_path / "memory", OPEN) as server:
        client = Client(server.url, retries=0, timeout=5)
        client.learn(png(1), "cat")
        with pytest.raises(ServiceError):
            client.backup(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["memory"]
