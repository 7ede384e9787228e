"""An edge and a service, over a line that is watched."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.serve.conftest import TOKENS, WRITE, Running, running

from anytimecl import Client
from anytimecl.client import ServiceError
from anytimecl.codec import make_codec
from anytimecl.scale import federated
from anytimecl.scale.federated import EdgeClient, Parcel, over_http

ROOT = Path(__file__).resolve().parents[2]
MODEL = helpers.model()
CODEC = make_codec("tokens-fp32", MODEL.spec, MODEL.tail)
COUNT = 24

# Dies at the worst moment: the service has learned the third batch, and the outbox does not know.
DIES_HALFWAY = f"""
import os, signal, sys
from tests.scale import test_federated_http as ours
from anytimecl.scale import federated

federated.BATCH = 4
folder, url = sys.argv[1:]
send = ours.sender(url)
batches = []

def dying(batch):
    receipt = send(batch)
    batches.append(receipt)
    if len(batches) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt

with ours.edge(folder, dying) as client:
    for number in range({COUNT}):
        label = ours.helpers.lesson(number)[1]
        client.add(ours.photo(number, folder), label, key=f"edge-{{number}}")
    client.flush()
"""


def photo(number: int, folder: Path | str) -> Path:
    """A picture as a file, under a name that is nobody's business."""
    path = Path(folder).parent / f"private {number}.png"
    helpers.picture(number).save(path)
    return path


def sender(url: str) -> federated.Send:
    return over_http(Client(url, token=WRITE), MODEL, CODEC)


def edge(folder: Path | str, send: federated.Send) -> EdgeClient:
    return EdgeClient(folder, MODEL, CODEC, send, fingerprint=MODEL.spec.fingerprint)


@contextmanager
def watched(server: Running) -> Iterator[tuple[str, list[bytearray]]]:
    """An address that leads to the server, and all that is ever sent to it, by connection."""
    seen: list[bytearray] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket, note: bytearray | None) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                if note is not None:
                    note += part
                target.sendall(part)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):  # it is closed at the end
            while True:
                edge_side, service_side = listening.accept()[0], server.connect()
                seen.append(bytearray())
                ways = ((edge_side, service_side, seen[-1]), (service_side, edge_side, None))
                both = [threading.Thread(target=carry, args=way, daemon=True) for way in ways]
                for thread in both:
                    thread.start()
                for thread in both:
                    thread.join(60)
                edge_side.close()
                service_side.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", seen
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(60)


def bodies(seen: list[bytearray]) -> list[dict[str, Any]]:
    return [json.loads(bytes(sent).partition(b"\r\n\r\n")[2]) for sent in seen]


def test_half_is_sent_the_edge_dies_and_all_arrives_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federated, "BATCH", 4)
    outbox, memory = tmp_path / "edge" / "outbox", tmp_path / "memory"
    outbox.mkdir(parents=True)
    with running(memory, TOKENS) as server, watched(server) as (url, seen):
        program = [sys.executable, "-c", DIES_HALFWAY, str(outbox), url]
        died = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert len(server.engine.classifier) == 12
    with running(memory, TOKENS) as server, watched(server) as (url, more):  # it restarts too
        with edge(outbox, sender(url)) as client:
            assert len(client) == 16  # four that are learned, and nobody told the edge
            assert client.flush() == 16
            assert (len(client), client.refused()) == (0, [])
        classifier = server.engine.classifier
        assert [classifier.memory.has_key(f"edge-{n}") for n in range(COUNT)] == [
            n + 1 for n in range(COUNT)
        ]
        expected = helpers.knowledge(helpers.taught(range(COUNT)))
        assert helpers.differing(helpers.knowledge(classifier), expected) == []
    check_what_left(seen + more)


def check_what_left(seen: list[bytearray]) -> None:
    """Every byte of every body is accounted for: model, codec, and of each example three things."""
    sent = [one for body in bodies(seen) for one in body["examples"]]
    assert len(sent) == COUNT + 4
    for body in bodies(seen):
        assert body.keys() == {"fingerprint", "codec", "examples"}
        assert body["fingerprint"] == MODEL.spec.fingerprint
        assert body["codec"] == CODEC.name
    for one in sent:
        assert one.keys() == {"key", "label", "record"}
        number = int(one["key"].removeprefix("edge-"))
        image, label = helpers.lesson(number)
        assert one["label"] == label
        assert base64.b64decode(one["record"]) == CODEC.encode(MODEL.encode([image])[0])
    wire = b"".join(seen)
    records = b"".join(base64.b64decode(one["record"]) for one in sent)
    assert b"private" not in wire
    for number in range(COUNT):
        pixels = helpers.picture(number).tobytes()
        for haystack in (wire, records):
            assert pixels[:24] not in haystack
            assert b"IHDR" not in haystack


def test_another_model_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    other = helpers.model(seed=1)
    codec = make_codec("tokens-fp32", other.spec, other.tail)
    with running(None, TOKENS) as server:
        send = over_http(Client(server.url, token=WRITE), other, codec)
        with EdgeClient(tmp_path, other, codec, send) as client:
            client.add(*helpers.lesson(0))
            with pytest.raises(ServiceError, match="encode the images again") as error:
                client.flush()
            assert error.value.status == 409
            assert (len(client), client.refused()) == (1, [])
        assert len(server.engine.classifier) == 0


def test_what_is_refused_stays_and_does_not_block(tmp_path: Path) -> None:
    with running(None, TOKENS) as server:
        Client(server.url, token=WRITE).learn(photo(0, tmp_path / "x"), "dog", key="taken")
        with edge(tmp_path / "outbox", sender(server.url)) as client:
            client.add(helpers.picture(1), "cat", key="taken")
            client.add(helpers.picture(2), "cat", key="free")
            assert client.flush() == 1
            [refused] = client.refused()
            assert refused.key == "taken"
            assert "which is 'dog'" in refused.why


def test_nobody_answers_and_everything_is_kept(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with edge(tmp_path, sender(f"http://127.0.0.1:{port}")) as client:
        client.add(*helpers.lesson(0))
        with pytest.raises(ServiceError, match="does not answer"):
            client.flush()
        assert len(client) == 1


def test_a_request_carries_no_more_bytes_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(CODEC.encode(MODEL.encode([helpers.picture(0)])[0]))
    monkeypatch.setattr(federated, "REQUEST", 3 * size)
    with (
        running(None, TOKENS) as server,
        watched(server) as (url, seen),
        edge(tmp_path, sender(url)) as client,
    ):
        for number in range(8):
            client.add(*helpers.lesson(number))
        assert client.flush() == 8
    assert [len(body["examples"]) for body in bodies(seen)] == [3, 3, 2]
    monkeypatch.setattr(federated, "REQUEST", 1)
    assert federated._fitting([Parcel("k", "cat", b"long")] * 2) == [Parcel("k", "cat", b"long")]
