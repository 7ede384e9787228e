"""Clients that ask for much and hang up: counted in decodes and their order, not in seconds."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from tests.serve.conftest import Running, Service, opened, png, running, text

import anytimecl.serve.intake as intake_module
from anytimecl.client import Client, ServiceError
from anytimecl.serve.tokens import AccessTokens

OPEN = AccessTokens({})
GENEROUS = {"per_second": 1e9, "burst": 10**9}
LARGE = (7050, 7050)  # 49.7 megapixels, in some six kilobytes


def bits(size: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("1", size).save(out, "PNG")
    return out.getvalue()


def send(server: Running, images: list[bytes]) -> socket.socket:
    """A form with these images, sent whole; nobody reads the answer."""
    edge = "edge"
    parts = [
        f'--{edge}\r\nContent-Disposition: form-data; name="labels"\r\n\r\n{label}\r\n'.encode()
        for label in ("cat", "dog")
    ]
    for image in images:
        head = f'--{edge}\r\nContent-Disposition: form-data; name="images"; filename="x"\r\n'
        parts.append(head.encode() + b"Content-Type: image/png\r\n\r\n" + image + b"\r\n")
    body = b"".join(parts) + f"--{edge}--\r\n".encode()
    head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: multipart/form-data; boundary={edge}\r\n"
    connection = server.connect()
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


class Watched:
    """`load_image`, with each decode noted by its size, and large ones held at a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hold: int) -> None:
        self.decoded: list[int] = []
        self.gate = threading.Event()
        self.holding = threading.Event()
        keep = intake_module.load_image

        def load(image: bytes, **options: Any) -> Image.Image:
            size = Image.open(io.BytesIO(image)).size
            self.decoded.append(size[0] * size[1])
            if self.decoded[-1] > hold:
                self.holding.set()
                assert self.gate.wait(60)
            return keep(image, **options)

        monkeypatch.setattr(intake_module, "load_image", load)


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_attack_is_refused_before_a_pixel_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests of 32 images of 49.7 megapixels each, 193 KiB a request."""
    watched = Watched(monkeypatch, hold=10**9)
    large = [bits(LARGE)] * 32
    assert sum(map(len, large)) < 250_000
    with running(None, OPEN, **GENEROUS) as server:
        for _ in range(3):
            connection = send(server, large)
            assert connection.recv(4000).startswith(b"HTTP/1.1 413")
            connection.close()
        assert Client(server.url).predict(png(1), ["cat", "dog"]).label in ("cat", "dog")
        assert len(watched.decoded) == 1


def test_an_ordinary_prediction_passes_large_ones_of_the_same_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many large images as may wait, and the first of them never ends."""
    watched = Watched(monkeypatch, hold=10**6)
    with running(None, OPEN, **GENEROUS) as server:
        attackers = [send(server, [bits(LARGE)] * 4) for _ in range(2)]
        assert watched.holding.wait(30)
        eventually(lambda: len(server.engine.intake.decoder) == 7)
        refused = send(server, [bits(LARGE)] * 4)
        assert refused.recv(4000).startswith(b"HTTP/1.1 429")
        client = Client(server.url, patience=0)
        for number in range(5):
            assert client.predict(png(number), ["cat", "dog"]).label in ("cat", "dog")
        assert len(watched.decoded) == 6  # one large, five ordinary
        watched.gate.set()
        for connection in (*attackers, refused):
            connection.close()


def test_who_hangs_up_has_nothing_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, hold=10**6)
    with running(None, OPEN, **GENEROUS) as server:
        attackers = [send(server, [bits(LARGE)] * 4) for _ in range(2)]
        assert watched.holding.wait(30)
        eventually(lambda: len(server.engine.intake.decoder) == 7)
        for connection in attackers:
            connection.close()
        eventually(lambda: len(server.engine.intake.decoder) == 0)
        watched.gate.set()
        assert Client(server.url).predict(png(1), ["cat", "dog"]).label in ("cat", "dog")
        assert len(watched.decoded) == 2  # the one under way, and the ordinary one
        assert server.engine.intake.decoder.most <= server.engine.options.decoding_pixels
        assert b'status="499"' in server.engine.metrics.text({"default": server.engine})


def test_a_lesson_whose_teacher_has_gone_is_taken_back() -> None:
    """Nothing was promised, so nothing is learned; its key is free."""
    with running(None, OPEN) as server:
        go = threading.Event()
        server.engine.turns.submit(lambda: go.wait(60))
        eventually(lambda: len(server.engine.turns) == 0)  # its turn has come
        body = json.dumps({"image": text(1), "label": "cat"}).encode()
        head = "POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = server.connect()
        connection.sendall(head.encode() + body)
        eventually(lambda: len(server.engine.turns) == 1)
        connection.close()
        eventually(
            lambda: b'status="499"' in server.engine.metrics.text({"default": server.engine})
        )
        go.set()
        client = Client(server.url)
        assert client.stats()["examples"] == 0
        assert not client.learn(png(1), "cat", key="k").repeated


def test_who_hangs_up_in_the_middle_of_a_body_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it fill the log."""
    with running(None, OPEN) as server:
        head = "POST /v1/learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection = server.connect()
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        time.sleep(0.2)  # its head is read
        connection.close()
        eventually(
            lambda: b'status="499"' in server.engine.metrics.text({"default": server.engine})
        )
        assert b'status="500"' not in server.engine.metrics.text({"default": server.engine})
    assert "failed" not in caplog.text


def test_a_format_that_needs_more_ram_than_is_set_aside_is_told() -> None:
    out = io.BytesIO()
    Image.new("RGB", (3000, 3000)).save(out, "WEBP", lossless=True, method=0)
    with opened(None, OPEN, decoding_pixels=40_000_000) as service:
        answer = predict(service, [out.getvalue()])
        assert answer.status_code == 422
        assert "takes more RAM in its format" in answer.json()["detail"]


def test_a_batch_fills_the_trunk_and_a_single_image_goes_before_its_rest() -> None:
    """Thirty-two tiny images a request cost an attacker nothing."""
    with running(None, OPEN, encode_batch=1, **GENEROUS) as server:
        encoder = server.engine.intake.encoder
        order, gate, entered = list[set[float]](), threading.Event(), threading.Event()
        keep = encoder._trunk

        def trunk(pixels: Any) -> Any:
            order.append({float(one.sum()) for one in pixels})
            entered.set()
            assert gate.wait(60)
            return keep(pixels)

        encoder._trunk = trunk
        attackers = [send(server, [png(1)] * 32) for _ in range(3)]
        assert entered.wait(30)
        eventually(lambda: len(encoder) == 94)
        answered = threading.Event()

        def ask() -> None:
            Client(server.url).predict(png(2), ["cat", "dog"])
            answered.set()

        threading.Thread(target=ask, daemon=True).start()
        eventually(lambda: len(encoder) == 95)
        gate.set()
        assert answered.wait(60)
        assert order[1] != order[0]  # next, after what was under way
        assert all(one == order[0] for one in order[2:])
        for connection in attackers:
            connection.close()


def predict(service: Service, images: list[bytes]) -> Any:
    files = [("images", ("x", image)) for image in images]
    return service.client.post("/v1/predict", files=files, data={"labels": ["cat", "dog"]})


def test_refusals_say_what_to_do() -> None:
    with running(None, OPEN) as server, pytest.raises(ServiceError, match="send fewer") as error:
        Client(server.url).predict([bits(LARGE)] * 5, ["cat", "dog"])
    assert error.value.status == 413
