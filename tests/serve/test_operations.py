"""What whoever runs the service relies on."""

from __future__ import annotations

import http.client
import json
import logging
import os
import shutil
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient
from tests import helpers
from tests.serve.conftest import (
    READ,
    TOKENS,
    WRITE,
    Running,
    Service,
    bearer,
    opened,
    png,
    running,
    text,
)
from typer.testing import CliRunner

from anytimecl.classifier import AnytimeClassifier
from anytimecl.cli import app
from anytimecl.client import Client, ServiceError
from anytimecl.commands.serve import _reload_on_hangup
from anytimecl.errors import AnytimeError
from anytimecl.memory.database import FILE
from anytimecl.serve import logs
from anytimecl.serve.app import create_app
from anytimecl.serve.engine import Engine
from anytimecl.serve.memories import Memories
from anytimecl.serve.options import Options
from anytimecl.serve.rights import Grant
from anytimecl.serve.tokens import AccessTokens, read_tokens, warn_if_shared

OPEN = AccessTokens({})


def get(server: Running, path: str, method: str = "GET") -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


# Health


def test_idle_sockets_keep_nobody_out() -> None:
    with running(None, OPEN, connections=5) as server:
        held = [server.connect() for _ in range(40)]
        assert get(server, "/healthz")[0] == 200
        assert Client(server.url).stats()["examples"] == 0
        for connection in held:
            connection.close()


def test_who_asks_whether_it_lives_is_told_while_every_connection_is_busy() -> None:
    """Streams hold their connections; what is more is refused with a problem."""
    with running(None, OPEN, connections=4) as server:
        held = []
        for _ in range(4):
            held.append(server.connect())
            held[-1].sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in held[-1].recv(4000)
        status, headers, body = get(server, "/v1/stats")
        assert status == 429
        assert headers["content-type"] == "application/problem+json"
        assert json.loads(body)["detail"].startswith("Too many requests")
        assert get(server, "/healthz")[0] == 200
        assert get(server, "/readyz")[0] == 200
        for connection in held:
            connection.close()


def test_bodies_that_do_not_arrive_keep_nobody_out() -> None:
    """Whoever has kept the service waiting for longest makes room."""
    with running(None, OPEN, connections=4, upload_seconds=60.0) as server:
        head = b"POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        held = []
        for _ in range(12):
            held.append(server.connect())
            held[-1].sendall(head + b"Content-Length: 1000\r\n\r\n{")
        for connection in held[:8]:
            with suppress(ConnectionError):
                assert connection.recv(4000) == b""  # closed long before its time was over
        for _ in range(3):
            assert get(server, "/v1/stats")[0] == 200
        for connection in held:
            connection.close()


class Usage(NamedTuple):
    free: int


def test_a_full_disk_is_not_ready_and_lives(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.client.get("/readyz").status_code == 200
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1000))
    answer = service.client.get("/readyz")
    assert answer.status_code == 503
    assert "has 1,000 bytes left" in answer.json()["detail"]
    assert "retry-after" in answer.headers
    assert service.client.get("/healthz").status_code == 200
    assert "anytimecl_disk_free_bytes 1000.0" in service.client.get("/metrics").text


def test_a_full_disk_of_memories_to_come_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, keep = tmp_path / "others", shutil.disk_usage
    others.mkdir()
    with opened(tmp_path / "memory", OPEN, others=others) as service:
        assert service.client.get("/readyz").status_code == 200
        monkeypatch.setattr(
            shutil, "disk_usage", lambda path: Usage(1000) if path == others else keep(path)
        )
        assert service.client.get("/readyz").status_code == 503


def test_a_trail_that_cannot_be_written_keeps_nobody_from_learning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.jsonl").mkdir(parents=True)
    with opened(tmp_path, OPEN) as service:
        assert service.learn(1, "cat")["id"] == 1
    assert "the audit trail lacks" in caplog.text


def test_what_is_no_http_is_a_problem_too() -> None:
    with running(None, OPEN) as server, server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nBad Header: x\r\n\r\n")
        answer = b""
        while part := connection.recv(4000):
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == 400


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/stats", "/v1/events", "/openapi.json"])
def test_head_is_get_without_the_body(path: str) -> None:
    with running(None, OPEN) as server:
        status, headers, body = get(server, path, "HEAD")
        assert (status, body) == (200, b"")
        if path != "/v1/events":
            expected = get(server, path)
            assert headers["content-type"] == expected[1]["content-type"]
            assert headers["content-length"] == str(len(expected[2]))
        while len(server.engine.broadcast):  # its place is free again
            time.sleep(0.01)
    with opened(None, TOKENS) as service:
        assert service.client.head("/v1/stats").status_code == 401
        assert service.client.head("/nowhere", headers=bearer(READ)).status_code == 404


# Logs


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logs.access.level

    def written() -> list[str]:
        return capsys.readouterr().err.splitlines()

    yield written
    root.handlers[:], root.level, logs.access.level = before
    logging.captureWarnings(False)


def test_every_request_is_logged_as_json_with_its_id_and_no_label(lines: Any) -> None:
    with warnings.catch_warnings():
        logs.set_up("json", access_log=True)
    tokens = AccessTokens({WRITE: Grant("upload-job", "write")})
    with opened(None, tokens) as service:
        sent = {**bearer(WRITE), "X-Request-ID": "mine-7"}
        answer = service.client.delete("/v1/labels/a%20private%20label", headers=sent)
        assert answer.headers["x-request-id"] == "mine-7"
        service.client.get("/v1/stats")
    told = [json.loads(line) for line in lines() if '"answered"' in line]
    assert [one["status"] for one in told] == [404, 401]
    assert (told[0]["request"], told[0]["who"]) == ("mine-7", "upload-job")
    assert told[0]["route"] == "/v1/labels/{label:path}"
    assert "private" not in json.dumps(told)
    assert WRITE not in json.dumps(told)


@pytest.mark.parametrize("bad", ["", "a b", "x" * 65, 'a"b'])
def test_an_id_that_could_forge_a_log_is_not_taken(service: Service, bad: str) -> None:
    answer = service.client.get("/healthz", headers={"X-Request-ID": bad})
    assert answer.headers["x-request-id"] != bad


def test_text_has_the_request_at_the_end_of_its_line() -> None:
    record = logging.makeLogRecord({"msg": "hello", "levelname": "ERROR"})
    record.fields, record.request = {"status": 200}, "r1"
    assert logs.TextFormatter().format(record).endswith("ERROR hello status=200 request=r1")


# The audit trail


def test_the_trail_tells_who_did_what(tmp_path: Path) -> None:
    tokens = AccessTokens({WRITE: Grant("upload-job", "write"), READ: "read"})
    with opened(tmp_path / "memory", tokens) as service:
        sent = {**bearer(WRITE), "X-Request-ID": "r-1"}
        for number in (1, 2):
            asked = {"image": text(number), "label": "a private label"}
            assert service.client.post("/v1/learn", json=asked, headers=sent).status_code == 200
        service.client.delete("/v1/examples/1", headers=sent)
        service.client.delete("/v1/labels/a private label", headers=sent)
        service.client.delete("/v1/examples/99", headers=sent)  # nothing was changed
        assert service.client.get("/v1/audit", headers=bearer(READ)).status_code == 403
        answer = service.client.get("/v1/audit", headers=sent)
        rest = service.client.get("/v1/audit?after=2&limit=1", headers=sent)
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert [one["action"] for one in told] == ["learned", "learned", "forgot", "forgot"]
    assert [one.get("example") for one in told] == [1, 2, 1, None]
    assert told[3]["examples"] == 1
    assert {(one["who"], one["request"]) for one in told} == {("upload-job", "r-1")}
    assert rest.text == answer.text.splitlines(keepends=True)[2]
    assert "private" not in answer.text
    with opened(tmp_path / "memory", tokens) as service:
        assert service.client.get("/v1/audit", headers=sent).text == answer.text


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with opened(folder, OPEN) as service:
        service.learn(1, "cat")
    trail = folder / "audit.jsonl"
    trail.write_bytes(trail.read_bytes()[:-9])
    with opened(folder, OPEN) as service:
        service.learn(2, "cat")
        told = service.client.get("/v1/audit").text.splitlines()
    assert [json.loads(line)["action"] for line in told] == ["cut short", "learned"]
    _, last = trail.read_text().splitlines()
    assert json.loads(last)["example"] == 2


# Tokens


def right(tokens: AccessTokens) -> str | None:
    found = tokens.find("Bearer another-token-of-some-length")
    return found and found.right


def test_tokens_are_read_again_on_hangup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"write {WRITE.replace(' ', '-')} job\n")
    file.chmod(0o600)
    tokens = read_tokens(file, {})
    before = signal.getsignal(signal.SIGHUP)
    try:
        _reload_on_hangup(tokens, file)
        file.write_text("read another-token-of-some-length\n")
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.1)
        assert tokens.find(f"Bearer {WRITE.replace(' ', '-')}") is None
        assert right(tokens) == "read"
        file.write_text("nonsense\n")
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.1)
        assert right(tokens) == "read"  # it goes on
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "stay as they were" in caplog.text


def test_a_service_with_tokens_is_never_left_without() -> None:
    with pytest.raises(AnytimeError, match="restart"):
        AccessTokens({WRITE: "write"}).replace(AccessTokens({}))


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    file = tmp_path / "tokens"
    file.write_text("write a-token-of-some-length\n")
    file.chmod(mode)
    warn_if_shared(file)
    assert ("can be read by others" in caplog.text) == warned
    assert "a-token" not in caplog.text


# Reading only


SIDE = {f"{FILE}-shm", f"{FILE}-wal"}  # which SQLite makes for readers too, where it may


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def test_a_memory_is_served_for_reading_only(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    with opened(folder, OPEN) as service:
        for number in range(4):
            service.learn(number, ("cat", "dog")[number % 2])
        asked = {"images": [text(1)], "labels": ["cat", "dog"]}
        expected = service.client.post("/v1/predict", json=asked).json()
    before = contents(folder)
    options = {"model": helpers.model(), "settings": helpers.settings()}
    classifier = AnytimeClassifier.open(folder, read_only=True, **options)  # type: ignore[arg-type]
    engine = Engine(classifier, Options())
    with TestClient(create_app(Memories(engine), OPEN), base_url="http://localhost") as client:
        assert client.post("/v1/predict", json=asked).json() == expected
        assert client.get("/v1/stats").json()["examples"] == 4
        assert len(client.get("/v1/stats").json()["outcomes"]) == 4
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/backup").status_code == 200
        refused = [
            client.post("/v1/learn", json={"image": text(1), "label": "cat"}),
            client.post("/v1/consolidate"),
            client.delete("/v1/examples/1"),
        ]
        for answer in refused:
            assert answer.status_code == 403
            assert "only reads" in answer.json()["detail"]
    assert {name for name, state in contents(folder).items() if before.get(name) != state} <= SIDE


# Settings


def config(*words: str, **environment: str) -> dict[str, str]:
    result = CliRunner().invoke(app, ["serve", "--show-config", *words], env=environment)
    assert result.exit_code == 0, result.output
    pairs = (line.removeprefix("# ").split(" = ", 1) for line in result.output.splitlines())
    return dict(pairs)  # type: ignore[arg-type]


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('memory = "m"\nport = 1\nmegapixels = 2\nhost = "::1"\nread-only = true\n')
    shown = config(
        "--config", str(file), "--port", "3",
        ANYTIMECL_SERVE_PORT="4", ANYTIMECL_SERVE_MEGAPIXELS="5",
    )  # fmt: skip
    assert shown["port"] == "3  # flag"
    assert shown["megapixels"] == "5  # environment"
    assert shown["host"] == '"::1"  # file'
    assert shown["read_only"] == "true  # file"
    assert shown["upload_mib"] == "32  # default"


@pytest.mark.parametrize(("content", "told"), [("prt = 1", "no setting 'prt'"), ("=", "cannot be")])
def test_a_file_that_makes_no_sense_is_told(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(content)
    result = CliRunner().invoke(app, ["serve", "--config", str(file), "--memory", "m"])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


# The description


def test_operations_have_names_tags_and_examples(service: Service) -> None:
    described = service.client.get("/openapi.json").json()
    operations = [one for path in described["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    assert {"predict", "learn", "learn_batch", "label_studio_predict"} <= set(names)
    tags = {tag["name"] for tag in described["tags"]}
    assert all(set(one["tags"]) <= tags and one["tags"] for one in operations)
    for one in operations:
        for kind, content in one.get("requestBody", {}).get("content", {}).items():
            if kind == "application/json" and "Label Studio" not in one["tags"]:
                assert "example" in content, one["operationId"]


def test_the_reference_needs_no_token_and_nothing_from_elsewhere(closed: Service) -> None:
    answer = closed.client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for path, methods in closed.client.get("/openapi.json").json()["paths"].items():
        assert f"<code>{path}</code>" in answer.text
        assert all(f'id="{one["operationId"]}"' in answer.text for one in methods.values())
    assert "<script" not in answer.text
    assert "http" not in answer.text.replace("http.", "").replace("HTTP", "")
    assert closed.client.get("/docs.css").headers["content-type"].startswith("text/css")


def test_a_backup_of_a_running_service_answers_the_same(tmp_path: Path) -> None:
    with running(tmp_path / "memory", OPEN) as server:
        client = Client(server.url)
        for number in range(6):
            client.learn(png(number), ("cat", "dog")[number % 2])
        words = ["memory", "backup", str(tmp_path / "memory"), str(tmp_path / "copy")]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        expected = client.predict(png(9), ["cat", "dog"])
        with pytest.raises(ServiceError):
            client.learn(b"no image", "cat")
    with running(tmp_path / "copy", OPEN) as server:
        assert Client(server.url).predict(png(9), ["cat", "dog"]) == expected
