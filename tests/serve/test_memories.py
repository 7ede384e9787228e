"""Several memories in one service: each for itself, all on one model."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.serve.conftest import (
    TOKENS,
    Service,
    bearer,
    make_memories,
    open_tiny,
    opened,
    png,
    running,
    text,
)
from typer.testing import CliRunner

from anytimecl.cli import app
from anytimecl.client import Client
from anytimecl.errors import CheckpointError
from anytimecl.serve.access import needed
from anytimecl.serve.granted import FILE, Granted
from anytimecl.serve.rights import Grant
from anytimecl.serve.tokens import AccessTokens

ADMIN = "a token that may do everything"
OPEN = AccessTokens({})
SECRET = "a-label-of-dogs-alone"


def closed_tokens(folder: Path | None = None) -> AccessTokens:
    return AccessTokens({ADMIN: Grant("operator", "admin")}, granted=Granted(folder))


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Service]:
    """Asks for no token; beside the first there may be any number of others."""
    with opened(tmp_path / "first", OPEN, others=tmp_path / "others") as made:
        yield made


def create(service: Service, *names: str, **headers: str) -> None:
    for name in names:
        answer = service.client.post("/v1/memories", json={"name": name}, headers=headers)
        assert answer.status_code == 201, answer.text


def learn(service: Service, memory: str, number: int, label: str, **headers: str) -> None:
    asked = {"image": text(number), "label": label}
    answer = service.client.post(f"/v1/memories/{memory}/learn", json=asked, headers=headers)
    assert answer.status_code == 200, answer.text


def labels(service: Service, memory: str, **headers: str) -> list[str]:
    answer = service.client.get(f"/v1/memories/{memory}/labels", headers=headers)
    assert answer.status_code == 200, answer.text
    return [one["label"] for one in answer.json()["labels"]]


def test_each_memory_learns_for_itself(several: Service, tmp_path: Path) -> None:
    create(several, "cats", "dogs")
    learn(several, "cats", 1, "tabby")
    learn(several, "dogs", 1, "corgi")
    several.learn(2, "neither")
    assert labels(several, "cats") == ["tabby"]
    assert labels(several, "dogs") == ["corgi"]
    assert labels(several, "default") == ["neither"]  # the one that paths without a name are about
    asked = {"images": [text(1)]}
    told = several.client.post("/v1/memories/dogs/predict", json=asked).json()
    assert told["predictions"][0]["label"] == "corgi"
    trail = (tmp_path / "others" / "dogs" / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in trail] == ["learned"]
    listed = several.client.get("/v1/memories").json()["memories"]
    assert [one["name"] for one in listed] == ["default", "cats", "dogs"]
    assert all(one["open"] and one["bytes"] > 0 for one in listed)


def test_memories_share_the_model_and_not_what_it_learned(several: Service) -> None:
    create(several, "cats")
    learn(several, "cats", 1, "tabby")
    mine = several.memories.opened()["cats"].classifier
    assert mine.backbone.trunk is several.engine.classifier.backbone.trunk
    assert mine.backbone.text is several.engine.classifier.backbone.text
    alone = helpers.taught([])
    alone.learn_one(helpers.picture(1), "tabby")
    assert helpers.differing(helpers.knowledge(mine), helpers.knowledge(alone)) == []


def test_they_are_there_after_a_restart(tmp_path: Path) -> None:
    for count in (1, 2):
        with opened(tmp_path / "first", OPEN, others=tmp_path / "others") as service:
            if count == 1:
                create(service, "cats")
            learn(service, "cats", count, "tabby")
            told = service.client.get("/v1/memories/cats/stats").json()
            assert told["examples"] == count


def test_those_unused_for_longest_are_closed_and_lose_nothing(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(5)]
    with opened(None, OPEN, others=tmp_path, open_memories=2) as service:
        create(service, *names)
        for number, name in enumerate(names):
            learn(service, name, number, f"label {name}")
        assert list(service.memories.opened()) == ["default", "m3", "m4"]
        for name in names:
            assert labels(service, name) == [f"label {name}"]
        assert list(service.memories.opened()) == ["default", "m3", "m4"]
        told = service.client.get("/metrics").text
        assert 'anytimecl_examples{memory="m4"} 1.0' in told
        assert 'memory="m0"' not in told


def test_one_without_room_for_its_checkpoint_keeps_no_other_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        memories = make_memories(None, tmp_path)
        await memories.create("a")
        await memories.create("b")
        every = [engine.classifier for engine in memories.opened().values()]
        close = every[1].close

        def full() -> None:
            close()
            raise CheckpointError("no room")

        every[1].close = full  # type: ignore[method-assign]
        await memories.close()
        assert [classifier.memory.closed for classifier in every] == [True, True, True]

    asyncio.run(work())
    assert "a was closed without a checkpoint: no room" in caplog.text


def test_one_that_is_deleted_while_the_service_stops_keeps_no_other_open(tmp_path: Path) -> None:
    async def work() -> None:
        memories = make_memories(None, tmp_path)
        await memories.create("a")
        await memories.create("b")
        every = [engine.classifier for engine in memories.opened().values()]
        close = every[1].close

        def slowly() -> None:
            time.sleep(0.3)
            close()

        every[1].close = slowly  # type: ignore[method-assign]
        async with memories.use("b"):
            deleting = asyncio.ensure_future(memories.delete("b"))
            await asyncio.sleep(0.05)
            stopping = asyncio.ensure_future(memories.close())
            await asyncio.sleep(0.05)  # a is being closed
        await stopping
        await deleting
        assert [classifier.memory.closed for classifier in every] == [True, True, True]

    asyncio.run(work())


def test_memories_at_work_are_not_closed(tmp_path: Path) -> None:
    async def work() -> None:
        memories = make_memories(None, tmp_path, open_memories=1)
        await memories.create("a")
        async with memories.use("a") as engine:
            with pytest.raises(Exception, match="at once are at work"):
                await memories.create("b")
            assert engine.ready
        await memories.create("b")
        assert not engine.ready
        await memories.close()

    asyncio.run(work())


def test_whoever_asks_while_it_is_opened_gets_the_same_one(tmp_path: Path) -> None:
    open_tiny(tmp_path / "a").close()

    async def work() -> None:
        memories = make_memories(None, tmp_path)

        async def ask() -> Any:
            async with memories.use("a") as engine:
                return engine

        found = await asyncio.gather(*(ask() for _ in range(5)))
        assert len(set(map(id, found))) == 1
        await memories.close()

    asyncio.run(work())


def test_one_that_cannot_be_opened_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_tiny(tmp_path / "a").close()
    with opened(None, OPEN, others=tmp_path) as service, open_tiny(tmp_path / "a"):
        for _ in range(2):
            assert service.client.get("/v1/memories/a/labels").status_code == 503
    assert "in use" in caplog.text
    with opened(None, OPEN, others=tmp_path) as service:
        assert service.client.get("/v1/memories/a/labels").status_code == 200


def test_deleted_is_gone_from_the_disk(several: Service, tmp_path: Path) -> None:
    create(several, "cats", "dogs")
    learn(several, "cats", 1, SECRET)
    assert several.client.delete("/v1/memories/cats").status_code == 204
    assert several.client.get("/v1/memories/cats/labels").status_code == 404
    assert several.client.delete("/v1/memories/cats").status_code == 404
    assert [path.name for path in (tmp_path / "others").iterdir()] == ["dogs"]
    assert several.client.delete("/v1/memories/default").status_code == 409
    create(several, "cats")
    assert labels(several, "cats") == []
    trail = several.client.get("/v1/audit").text.splitlines()
    told = [(json.loads(line)["action"], json.loads(line)["memory"]) for line in trail]
    assert told[-2:] == [("deleted", "cats"), ("created", "cats")]


def test_deleting_ends_streams_and_waits_for_lessons(tmp_path: Path) -> None:
    with running(None, OPEN, others=tmp_path) as server:
        client = Client(server.url)
        client.create_memory("cats")
        with server.connect() as stream:
            stream.sendall(b"GET /v1/memories/cats/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stream.recv(4000).startswith(b"HTTP/1.1 200")
            client.delete_memory("cats")
            while stream.recv(4000):  # until it ends
                pass
        assert [one["name"] for one in client.memories()] == ["default"]


def test_what_a_crash_left_of_a_deletion_goes_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / ".deleted-cats-0123"
    left.mkdir()
    (left / "memory.sqlite3").write_bytes(b"x")
    with opened(None, OPEN, others=tmp_path) as service:
        assert [one["name"] for one in service.client.get("/v1/memories").json()["memories"]] == [
            "default"
        ]
    assert not left.exists()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "Cats", ".hidden", "x" * 65, "a\n", "ä"])
def test_names_lead_nowhere_else(several: Service, name: str, tmp_path: Path) -> None:
    assert several.client.post("/v1/memories", json={"name": name}).status_code == 422
    assert not (tmp_path / "others").exists()


@pytest.mark.parametrize("path", ["%2e%2e", "first", "..%2ffirst", "default%2f..%2fx"])
def test_no_path_leads_to_a_folder_elsewhere(several: Service, path: str) -> None:
    answer = several.client.get(f"/v1/memories/{path}/labels")
    assert answer.status_code in (404, 422)


def test_a_service_of_one_memory_says_how_to_have_more(service: Service) -> None:
    answer = service.client.post("/v1/memories", json={"name": "cats"})
    assert answer.status_code == 409
    assert "--memories" in answer.json()["detail"]
    assert service.client.get("/v1/memories/cats/labels").status_code == 404


def test_there_are_only_so_many(tmp_path: Path) -> None:
    with opened(None, OPEN, others=tmp_path, memories=2) as service:
        create(service, "a", "b")
        assert service.client.post("/v1/memories", json={"name": "a"}).status_code == 409
        answer = service.client.post("/v1/memories", json={"name": "c"})
        assert answer.status_code == 409
        assert "as many as may be" in answer.json()["detail"]


# Tokens


def grant(service: Service, name: str, right: str, memories: list[str] | None) -> str:
    asked = {"name": name, "right": right, "memories": memories}
    answer = service.client.post("/v1/tokens", json=asked, headers=bearer(ADMIN))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def test_a_token_reaches_its_memories_and_no_other(tmp_path: Path) -> None:
    """Under no path and by no method, and nobody learns from it which memories there are."""
    with opened(tmp_path / "first", closed_tokens(), others=tmp_path / "others") as service:
        create(service, "cats", "dogs", **bearer(ADMIN))
        learn(service, "dogs", 1, SECRET, **bearer(ADMIN))
        learn(service, "default", 2, SECRET, **bearer(ADMIN))
        mine = bearer(grant(service, "camera", "write", ["cats"]))
        learn(service, "cats", 1, "tabby", **mine)
        assert labels(service, "cats", **mine) == ["tabby"]
        paths = service.client.get("/openapi.json").json()["paths"]
        checked = 0
        for path, methods in paths.items():
            if path in ("/healthz", "/readyz", "/v1/memories") or path.startswith("/v1/tokens"):
                continue
            for memory in ("dogs", "default", "nosuch"):
                filled = path.replace("{memory}", memory)
                for name in ("label", "example", "job", "name"):
                    filled = filled.replace(f"{{{name}}}", "1")
                for method in methods:
                    answer = service.client.request(method, filled, headers=mine)
                    assert answer.status_code == 403, (method, filled)
                    assert SECRET not in answer.text
                    checked += 1
        assert checked > 100
        listed = service.client.get("/v1/memories", headers=mine).json()["memories"]
        assert [(one["name"], one["right"]) for one in listed] == [("cats", "write")]
        for method, path in (("GET", "tokens"), ("POST", "tokens"), ("POST", "memories"),
                             ("DELETE", "memories/cats"), ("DELETE", "tokens/camera")):  # fmt: skip
            answer = service.client.request(method, f"/v1/{path}", headers=mine)
            assert answer.status_code == 403


def test_tokens_come_and_go_without_a_restart_and_stay_after_one(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    with opened(folder, closed_tokens(folder), others=tmp_path / "others") as service:
        create(service, "cats", **bearer(ADMIN))
        reads = grant(service, "reader", "read", ["cats"])
        goes = grant(service, "goes", "write", None)
        assert service.client.get("/v1/stats", headers=bearer(goes)).status_code == 200
        revoked = service.client.delete("/v1/tokens/goes", headers=bearer(ADMIN))
        assert revoked.status_code == 204
        assert service.client.get("/v1/stats", headers=bearer(goes)).status_code == 401
        asked = {"image": text(1), "label": "cat"}
        refused = service.client.post("/v1/memories/cats/learn", json=asked, headers=bearer(reads))
        assert refused.status_code == 403
        told = service.client.get("/v1/audit", headers=bearer(ADMIN)).text
        actions = [json.loads(line)["action"] for line in told.splitlines()]
        assert actions == ["created", "granted", "granted", "revoked"]
        assert reads not in told
    assert reads not in (folder / FILE).read_text()  # a digest alone
    assert (folder / FILE).stat().st_mode & 0o077 == 0
    with opened(folder, closed_tokens(folder), others=tmp_path / "others") as service:
        assert labels(service, "cats", **bearer(reads)) == []
        listed = service.client.get("/v1/tokens", headers=bearer(ADMIN)).json()["tokens"]
        assert [(one["name"], one["revocable"]) for one in listed] == [
            ("operator", False), ("reader", True),
        ]  # fmt: skip


def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    with running(folder, closed_tokens(folder)) as server:
        admin = Client(server.url, token=ADMIN)
        token = admin.grant("listener", "read")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/v1/events", headers=bearer(token))
        stream = connection.getresponse()
        stream.readline()  # it listens now
        admin.learn(png(1), "cat")
        while not stream.readline().startswith(b"data: "):
            pass
        admin.revoke("listener")
        admin.learn(png(2), SECRET)
        assert SECRET.encode() not in stream.read()  # it ends
        connection.close()


def test_a_full_disk_grants_and_revokes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "first"
    with opened(folder, closed_tokens(folder)) as service:
        stays = grant(service, "stays", "read", None)

        def full(path: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("anytimecl.serve.granted.replacing", full)
        asked = {"name": "more", "right": "read"}
        answers = [
            service.client.post("/v1/tokens", json=asked, headers=bearer(ADMIN)),
            service.client.delete("/v1/tokens/stays", headers=bearer(ADMIN)),
        ]
        assert [answer.status_code for answer in answers] == [503, 503]
        assert service.client.get("/v1/stats", headers=bearer(stays)).status_code == 200


def test_a_name_is_granted_once_however_many_ask_at_once() -> None:
    granted = Granted(None)
    assert granted.add(Grant("camera", "read")) is not None
    assert granted.add(Grant("camera", "read")) is None
    assert [one.name for _, one in granted] == ["camera"]


def test_a_new_memory_is_not_for_those_who_had_the_old_one(tmp_path: Path) -> None:
    with opened(None, closed_tokens(), others=tmp_path) as service:
        create(service, "cats", "dogs", **bearer(ADMIN))
        both = bearer(grant(service, "both", "read", ["cats", "dogs"]))
        only = bearer(grant(service, "only", "read", ["cats"]))
        service.client.delete("/v1/memories/cats", headers=bearer(ADMIN))
        create(service, "cats", **bearer(ADMIN))
        assert service.client.get("/v1/memories/cats/labels", headers=both).status_code == 403
        assert labels(service, "dogs", **both) == []
        assert service.client.get("/v1/memories/cats/labels", headers=only).status_code == 401


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ({"name": "operator", "right": "read"}, 409, "already"),
        ({"name": "x", "right": "admin", "memories": ["default"]}, 409, "for all memories"),
        ({"name": "x", "right": "read", "memories": ["nosuch"]}, 409, "no memory 'nosuch'"),
        ({"name": "a b", "right": "read"}, 422, "name"),
        ({"name": "x", "right": "own"}, 422, "right"),
    ],
)
def test_grants_that_make_no_sense(asked: dict[str, Any], status: int, told: str) -> None:
    with opened(None, closed_tokens()) as service:
        answer = service.client.post("/v1/tokens", json=asked, headers=bearer(ADMIN))
        assert answer.status_code == status
        assert told in answer.json()["detail"]


def test_nothing_is_granted_where_no_token_is_needed(service: Service) -> None:
    answer = service.client.post("/v1/tokens", json={"name": "x", "right": "read"})
    assert answer.status_code == 409
    assert "--tokens" in answer.json()["detail"]


def test_only_admins_grant() -> None:
    with opened(None, TOKENS) as service:
        write = bearer("a token that may read and write")
        asked = {"name": "x", "right": "read"}
        assert service.client.post("/v1/tokens", json=asked, headers=write).status_code == 403


def test_a_path_of_a_memory_needs_what_the_same_path_of_the_first_does() -> None:
    for method in ("GET", "POST", "DELETE"):
        for path in ("predict", "learn", "stats", "audit", "examples/1", "labels/x/y"):
            first, other = needed(method, f"/v1/{path}"), needed(method, f"/v1/memories/m/{path}")
            assert (first.right, other.right) == (first.right, first.right)
            assert (first.memories, other.memories) == (("default",), ("m",))


def test_a_damaged_file_of_grants_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(Exception, match="Move the file away"):
        Granted(tmp_path)


def test_a_client_of_one_memory(tmp_path: Path) -> None:
    with running(None, OPEN, others=tmp_path) as server:
        Client(server.url).create_memory("cats")
        client = Client(server.url, memory="cats")
        client.learn(png(1), "tabby")
        assert client.labels() == {"tabby": 1}
        assert client.predict(png(1)).label == "tabby"
        assert Client(server.url).labels() == {}


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that an admin does, and what an ordinary token is told."""
    with running(None, closed_tokens(), others=tmp_path) as server:
        monkeypatch.setenv("ANYTIMECL_URL", server.url)

        def run(*words: str, token: str = ADMIN) -> str:
            environment = {"ANYTIMECL_ADMIN_TOKEN": token}
            result = CliRunner().invoke(app, ["service", *words], env=environment)
            return (
                result.output if result.exit_code == 0 else f"{result.exit_code}: {result.output}"
            )

        assert run("create", "cats", "dogs") == "created cats\ncreated dogs\n"
        token = run("grant", "camera", "write", "--memory", "cats").strip()
        assert run("memories", token=token).split()[:3] == ["cats", "write", "open"]
        assert "not for this memory" in run("create", "birds", token=token)
        assert "camera    write  cats" in run("tokens")
        assert run("revoke", "camera") == "revoked camera\n"
        assert "Send a token" in run("memories", token=token)
        assert run("delete", "cats", "--yes") == "deleted cats\n"
        assert [line.split()[0] for line in run("memories").splitlines()] == ["default", "dogs"]
