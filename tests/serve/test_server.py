"""With a real socket: slow clients, streams, and how it ends."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import h11
import pytest
from tests import helpers
from tests.serve.conftest import Running, make_memories, png, running, text

from anytimecl.classifier import AnytimeClassifier
from anytimecl.client import Client, ServiceError
from anytimecl.memory import open_memory
from anytimecl.serve.tokens import AccessTokens

OPEN = AccessTokens({})


def dribble(connection: socket.socket, data: bytes, pause: float, patience: float) -> float:
    """Send byte by byte; seconds until the server closed the connection."""
    began = time.monotonic()
    connection.settimeout(pause)
    for at in range(len(data)):
        assert time.monotonic() - began < patience, "it is still open"
        try:
            connection.sendall(data[at : at + 1])
            if connection.recv(1000) == b"":
                break
        except TimeoutError:
            continue  # nothing to read yet
        except OSError:
            break
    return time.monotonic() - began


def test_a_head_that_never_ends_is_cut_off() -> None:
    with running(None, OPEN, header_seconds=0.5) as server, server.connect() as connection:
        head = b"GET /healthz HTTP/1.1\r\n" + b"X-Slow: 1\r\n" * 1000
        assert dribble(connection, head, 0.05, 20) < 10


def test_silence_is_cut_off() -> None:
    with running(None, OPEN, header_seconds=0.3) as server, server.connect() as connection:
        assert connection.recv(100) == b""


def test_a_second_head_is_bounded_like_the_first() -> None:
    with running(None, OPEN, header_seconds=0.5) as server, server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in connection.recv(4000)
        assert dribble(connection, b"GET /healthz HTTP/1.1\r\n" + b"X: 1\r\n" * 500, 0.05, 20) < 10


def test_a_body_that_never_ends_is_answered_408() -> None:
    with running(None, OPEN, upload_seconds=0.5) as server, server.connect() as connection:
        head = b"POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 1000\r\n\r\n{")
        answer = connection.recv(4000)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer.lower()
        while connection.recv(4000):  # it ends
            pass


def test_who_is_refused_cannot_go_on_sending() -> None:
    """The answer is there before the body; what nobody will read may not hold the connection."""
    tokens = AccessTokens({"a token that nobody sends": "write"})
    with running(None, tokens, header_seconds=0.5) as server, server.connect() as connection:
        head = b"POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        connection.sendall(head)
        assert b"401" in connection.recv(4000)
        assert dribble(connection, b"x" * 1000, 0.05, 20) < 10


def test_who_never_takes_an_answer_is_cut_off() -> None:
    generous = {"per_second": 1e9, "burst": 10**9}
    with running(None, OPEN, send_seconds=0.5, **generous) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        asked, count = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 400
        connection.sendall(asked * count)  # more than any buffer holds
        end = time.monotonic() + 60
        for wanted in (1, 0):
            while server.connections() != wanted:
                assert time.monotonic() < end
                time.sleep(0.01)
        connection.settimeout(30)
        taken = 0
        with suppress(ConnectionError):
            while part := connection.recv(1 << 20):
                taken += part.count(b"HTTP/1.1 200")
        assert taken < count
        assert Client(server.url).stats()["examples"] == 0


HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n\r\n"


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_a_body_of_crumbs_is_refused_before_it_is_read(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of one byte takes as long to be parsed as one of thousands."""
    parsed, keep = [], h11.Connection.next_event

    def counted(self: h11.Connection) -> Any:
        parsed.append(1)
        return keep(self)

    monkeypatch.setattr(h11.Connection, "next_event", counted)
    with running(None, OPEN) as server, server.connect() as connection:
        whole = HEAD + JSON
        first, rest = whole[: len(whole) - cut], whole[len(whole) - cut :]
        connection.sendall(first)
        time.sleep(0.2 if cut else 0.0)  # until it is read: the head ends in what comes next
        with suppress(ConnectionError):
            connection.sendall(rest + b"1\r\n \r\n" * 200_000)
            assert connection.recv(4000).startswith(b"HTTP/1.1 400")
        assert len(parsed) < 2_000
        assert Client(server.url).stats()["examples"] == 0


def test_a_body_may_come_in_ordinary_chunks() -> None:
    body = json.dumps({"images": [text(1)], "labels": ["cat", "dog"]}).encode()
    with running(None, OPEN) as server:
        for size in (1, 7, 500, 10**6):
            parts = [body[at : at + size] for at in range(0, len(body), size)][:400]
            parts[-1] = body[sum(map(len, parts[:-1])) :]
            chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
            with server.connect() as connection:
                connection.sendall(HEAD + JSON + b"".join(chunks) + b"0\r\n\r\n")
                assert connection.recv(4000).startswith(b"HTTP/1.1 200")


def test_requests_may_follow_each_other_at_once() -> None:
    with running(None, OPEN) as server, server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        told = b""
        while told.count(b'{"status":"ok"}') < 3:
            part = connection.recv(4000)
            assert part
            told += part


def test_many_slow_clients_do_not_keep_out_others() -> None:
    with running(None, OPEN, header_seconds=5.0) as server:
        slow = [server.connect() for _ in range(50)]
        for connection in slow:
            connection.sendall(b"GET /")
        began = time.monotonic()
        assert Client(server.url).stats()["examples"] == 0
        assert time.monotonic() - began < 4
        for connection in slow:
            connection.close()


def test_connections_are_bounded() -> None:
    """Who has been idle for longest makes room."""
    with running(None, OPEN, connections=5) as server:
        held = [server.connect() for _ in range(8)]
        for connection in held[:3]:
            assert connection.recv(100) == b""  # closed long before its time was over
        assert Client(server.url).stats()["examples"] == 0
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET /\r\nSet-Cookie: x HTTP/1.1\r\n\r\n",
        b"POST /v1/learn HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_requests_that_are_none(request_line: bytes) -> None:
    with running(None, OPEN, header_seconds=2.0) as server, server.connect() as connection:
        connection.sendall(request_line)
        answer = connection.recv(4000)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
        assert b"set-cookie" not in answer.lower()
        assert b"Traceback" not in answer
        assert Client(server.url).stats()["examples"] == 0


def events(server: Running) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/v1/events")
    return connection, connection.getresponse()


def next_event(stream: http.client.HTTPResponse) -> tuple[str, object]:
    kind = ""
    while True:
        line = stream.readline().decode().strip()
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        if line.startswith("data: "):
            return kind, json.loads(line.removeprefix("data: "))


def test_a_listener_hears_what_happens() -> None:
    with running(None, OPEN) as server:
        connection, stream = events(server)
        assert stream.headers["content-type"].startswith("text/event-stream")
        stream.readline()  # it listens now
        client = Client(server.url)
        lesson = client.learn(png(1), "tabby\u2028cat")
        assert next_event(stream) == ("learned", {"id": lesson.id, "label": "tabby cat"})
        client.forget(example_id=lesson.id)
        assert next_event(stream) == ("forgotten", {"examples": 1})
        connection.close()


def test_listeners_are_bounded() -> None:
    with running(None, OPEN, streams=2) as server:
        open_ones = [events(server) for _ in range(2)]
        for _, stream in open_ones:
            stream.readline()
        connection, refused = events(server)
        assert refused.status == 429
        for one in (connection, *(one for one, _ in open_ones)):
            one.close()


def test_stopping_ends_streams_and_answers_what_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lessons at work and waiting are answered, stored, and in a checkpoint."""
    let_go, entered = threading.Event(), threading.Event()
    keep = AnytimeClassifier.learn_tokens

    def slowly(self: AnytimeClassifier, *args: object, **options: object) -> object:
        entered.set()
        assert let_go.wait(60)
        return keep(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(AnytimeClassifier, "learn_tokens", slowly)
    answered: list[int] = []
    with running(tmp_path / "memory", OPEN) as server:
        listener, stream = events(server)
        client = Client(server.url)
        threads = [
            threading.Thread(target=lambda n=n: answered.append(client.learn(png(n), "cat").id))  # type: ignore[misc]
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        assert entered.wait(60)
        while len(server.engine.turns) < 3:
            time.sleep(0.01)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        while stream.readline():  # the stream ends at once
            pass
        time.sleep(0.3)
        assert stopping.is_alive()  # it waits for what was begun
        let_go.set()
        stopping.join(60)
        for thread in threads:
            thread.join(60)
        listener.close()
    assert sorted(answered) == [1, 2, 3, 4]
    with open_memory(tmp_path / "memory", read_only=True) as memory:
        assert [example for example, _ in memory.ids()] == [1, 2, 3, 4]


def test_a_consolidation_that_a_stop_cuts_short_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, keep = threading.Event(), AnytimeClassifier.consolidate

    def slowly(self: AnytimeClassifier, epochs: int, progress: Any) -> None:
        def step(done: int, steps: int) -> None:
            began.set()
            time.sleep(0.05)
            progress(done, steps)

        keep(self, epochs, progress=step)

    with running(tmp_path / "memory", OPEN) as server:
        client = Client(server.url)
        for number in range(10):
            client.learn(png(number), ("cat", "dog")[number % 2])
        monkeypatch.setattr(AnytimeClassifier, "consolidate", slowly)
        client.consolidate(epochs=50, wait=False)
        assert began.wait(60)
        last = threading.Thread(target=lambda: client.learn(png(10), "cat"))
        last.start()
        while not len(server.engine.turns):
            time.sleep(0.01)
        stopped = time.monotonic()
        server.stop()
        assert time.monotonic() - stopped < 20  # a hundred steps were asked for
        last.join(60)
    monkeypatch.undo()
    with running(tmp_path / "memory", OPEN) as server:
        assert len(server.engine.classifier) == 11  # who waited behind it was answered too
        job = Client(server.url).stats()["job"]
        assert job["kind"] == "consolidate"
        while not Client(server.url).job(job["id"]).over:
            time.sleep(0.05)
        mine = helpers.knowledge(server.engine.classifier)
        expected = helpers.taught([])
        for number in range(11):
            expected.learn_one(helpers.picture(number), ("cat", "dog")[number % 2])
        expected.consolidate(epochs=50)
        assert helpers.differing(mine, helpers.knowledge(expected)) == []
    with running(tmp_path / "memory", OPEN) as server:
        assert Client(server.url).stats()["job"] is None  # the promise is kept


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from anytimecl.serve.app import create_app
    from anytimecl.serve.server import make_server

    with socket.create_server(("127.0.0.1", 0)) as taken:
        memories = make_memories(None)
        port = taken.getsockname()[1]
        server = make_server(create_app(memories, OPEN), memories, "127.0.0.1", port)
        with pytest.raises(SystemExit):
            server.run()
    assert memories.default.classifier.memory._db is None  # let go of


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(ServiceError, match="does not answer"):
        Client(f"http://127.0.0.1:{port}").stats()


def test_base64_over_the_wire() -> None:
    with running(None, OPEN) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        body = json.dumps({"images": [text(1)], "labels": ["a", "b"]})
        connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
