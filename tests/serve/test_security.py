"""Who may do what, and what becomes of hostile requests."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import select
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError
from starlette.types import Message
from tests.serve.conftest import READ, TOKENS, WRITE, Service, bearer, opened, png, running, text

from anytimecl.client import Client
from anytimecl.errors import AnytimeError, StoreError
from anytimecl.serve.bodies import Body, Uploads
from anytimecl.serve.guard import SECURITY
from anytimecl.serve.options import Options
from anytimecl.serve.problems import Busy
from anytimecl.serve.records import RecordsAsked
from anytimecl.serve.schemas import IMAGES, LABELS
from anytimecl.serve.server import check_binding
from anytimecl.serve.tokens import AccessTokens

LEARN = {"image": text(1), "label": "cat"}


def operations(service: Service) -> list[tuple[str, str]]:
    """Every method of every path that the service describes."""
    paths = service.client.get("/openapi.json").json()["paths"]
    filled = {path: re.sub("{.*?}", "1", path) for path in paths}
    return [(method.upper(), filled[path]) for path in paths for method in paths[path]]


OPEN = {"/healthz", "/readyz"}
READS = {
    "/v1/predict",
    "/v1/order",
    "/v1/examples/like",
    "/label-studio/predict",
    "/label-studio/setup",
}


def test_nothing_without_a_token(closed: Service) -> None:
    checked = 0
    for method, path in operations(closed):
        if path in OPEN:
            continue
        for headers in ({}, bearer("no such token here"), {"Authorization": "Basic !!!"}):
            response = closed.client.request(method, path, headers=headers)
            assert response.status_code == 401, (method, path)
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["content-type"] == "application/problem+json"
            checked += 1
    assert checked >= 3 * 14


def test_a_reading_token_writes_nothing(closed: Service) -> None:
    checked = 0
    for method, path in [*operations(closed), ("PUT", "/v1/labels"), ("POST", "/no/such/path")]:
        if method == "GET" or path.replace("/memories/1", "") in READS:
            continue
        assert closed.client.request(method, path, headers=bearer(READ)).status_code == 403
        checked += 1
    assert checked >= 6
    learned = closed.client.post("/v1/learn", json=LEARN, headers=bearer(WRITE))
    assert learned.status_code == 200
    asked = {"images": [text(1)]}
    assert closed.client.post("/v1/predict", json=asked, headers=bearer(READ)).status_code == 200
    assert closed.client.get("/v1/stats", headers=bearer(READ)).status_code == 200


def test_a_password_may_carry_the_token(closed: Service) -> None:
    secret = base64.b64encode(f"anyone:{READ}".encode()).decode()
    headers = {"Authorization": f"Basic {secret}"}
    assert closed.client.get("/v1/stats", headers=headers).status_code == 200


def test_page_and_health_are_open(closed: Service) -> None:
    for path in ("/", "/page.css", "/page.js", "/healthz", "/readyz", "/openapi.json"):
        assert closed.client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/../healthz", "//healthz", "/healthz/", "/%68ealthz/../v1"])
def test_no_path_leads_around_the_guard(closed: Service, path: str) -> None:
    response = closed.client.post(path, json=LEARN)
    assert response.status_code in (401, 403, 405)


@pytest.mark.parametrize(
    "path",
    ["/page.js/../../../../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
     "/v1/examples/..%2f..%2fetc%2fpasswd/thumbnail", "/v1/jobs/..%2f..%2fetc%2fpasswd"],
)  # fmt: skip
def test_paths_lead_to_no_file(service: Service, path: str) -> None:
    response = service.client.get(path)
    assert response.status_code in (404, 422)
    assert "root:" not in response.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_off_this_machine_only_with_tokens(host: str) -> None:
    with pytest.raises(AnytimeError, match="no token is set"):
        check_binding(host, AccessTokens({}))
    check_binding(host, TOKENS)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_on_this_machine_without(host: str) -> None:
    check_binding(host, AccessTokens({}))


def test_a_foreign_page_cannot_teach(service: Service) -> None:
    """A browser sends such a form without asking: it must be refused by where it comes from."""
    form: dict[str, Any] = {"files": {"image": ("a.png", png(1))}, "data": {"label": "spam"}}
    for origin in ("https://evil.example", "null", "http://localhost:9"):
        response = service.client.post("/v1/learn", **form, headers={"Origin": origin})
        assert response.status_code == 403
    assert not len(service.engine.classifier)
    own = service.client.post("/v1/learn", **form, headers={"Origin": "http://localhost"})
    assert own.status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[::1", ""])
def test_a_foreign_name_for_this_machine_is_refused(service: Service, host: str) -> None:
    assert service.client.get("/v1/stats", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_foreign_page_cannot_even_ask(service: Service, site: str) -> None:
    """It could not read the answer, but have a whole memory copied, or every place to listen."""
    headers = {"Sec-Fetch-Site": site}
    for path in ("/v1/stats", "/v1/backup", "/v1/events", "/metrics"):
        assert service.client.get(path, headers=headers).status_code == 403
    for path in ("/", "/docs", "/healthz"):  # a link may lead here
        assert service.client.get(path, headers=headers).status_code == 200
    own = {"Sec-Fetch-Site": "same-origin"}
    assert service.client.get("/v1/stats", headers=own).status_code == 200


def test_other_origins_get_no_permission(service: Service) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    response = service.client.options("/v1/learn", headers=headers)
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert response.status_code == 405


def test_every_answer_carries_the_security_headers(service: Service) -> None:
    for method, path in [*operations(service), ("GET", "/"), ("GET", "/nothing")]:
        if path == "/v1/events":
            continue
        response = service.client.request(method, path)
        assert {name: response.headers[name] for name in SECURITY} == SECURITY
        assert "server" not in response.headers
    assert "unsafe" not in SECURITY["content-security-policy"]


# --- too much ------------------------------------------------------------------------------------


def test_a_large_upload_is_refused_by_its_head() -> None:
    with opened(None, AccessTokens({}), upload_bytes=1000) as service:
        response = service.client.post("/v1/learn", json={"image": "A" * 2000, "label": "x"})
        assert response.status_code == 413
        assert response.headers["connection"] == "close"


def test_a_large_upload_is_refused_as_it_comes() -> None:
    with opened(None, AccessTokens({}), upload_bytes=1000) as service:
        parts = (b" " * 400 for _ in range(10))  # chunked: no length is told
        headers = {"Content-Type": "application/json"}
        response = service.client.post("/v1/learn", content=parts, headers=headers)
        assert response.status_code == 413


def test_all_uploads_together_are_bounded() -> None:
    with opened(None, AccessTokens({}), uploads_bytes=500) as service:
        response = service.client.post("/v1/learn", json=LEARN)
        assert response.status_code == 429
        assert not service.app._uploads._bytes  # type: ignore[attr-defined]


def test_who_uploads_much_and_slowly_keeps_nobody_else_out() -> None:
    limits = {"upload_bytes": 640_000, "uploads_bytes": 1_000_000, "upload_seconds": 60.0}
    with running(None, AccessTokens({}), **limits) as server:
        head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        held = [server.connect() for _ in range(2)]
        for connection in held:
            connection.sendall(f"{head}Content-Length: 600000\r\n\r\n".encode() + b" " * 500_000)
        client = Client(server.url, patience=0)
        answered = select.select(held, [], [], 30)[0]
        assert [one.recv(4000)[:12] for one in answered] == [b"HTTP/1.1 429"]  # there is one left
        for number in range(3):
            assert client.predict(png(number), ["cat", "dog"]).label in ("cat", "dog")
        for connection in held:
            connection.close()


def test_of_two_uploads_that_are_too_much_together_one_goes_on() -> None:
    """What the refused one had counts no more when the next piece of the other comes."""
    uploads = Uploads(Options(uploads_bytes=1000))

    async def piece() -> Message:
        return {"type": "http.request", "body": b" " * 400, "more_body": True}

    async def both() -> None:
        refused, other = Body(uploads, piece), Body(uploads, piece)
        for body in (refused, other):
            body.client = "somebody"
            await body.receive()
        with pytest.raises(Busy):
            await refused.receive()
        await other.receive()
        assert uploads._bytes == {"somebody": 800}

    asyncio.run(both())


def test_the_last_of_the_room_is_for_other_clients() -> None:
    limits = {"upload_bytes": 640_000, "uploads_bytes": 200_000, "upload_seconds": 60.0}
    with running(None, TOKENS, **limits) as server:
        head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {READ}\r\nContent-Length: 40000\r\n\r\n"
        held = [server.connect() for _ in range(5)]
        for connection in held:
            connection.sendall(head.encode() + b" " * 39_000)
        answered = select.select(held, [], [], 30)[0]
        assert [one.recv(4000)[:12] for one in answered] == [b"HTTP/1.1 429"]
        client = Client(server.url, token=WRITE, patience=0)
        assert client.predict(png(1), ["cat", "dog"]).label in ("cat", "dog")
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"images": ["eA=="], "labels": [' + b"[]," * 200_000 + b"[]]}",
        b'{"images": ["eA=="], "labels": [' + b'"a",' * 400_000 + b'"a"]}',
        b'{"images": ["eA=="]' + b"".join(b', "%d" : 1' % n for n in range(11_000)) + b"}",
    ],
)
def test_json_of_nothing_but_parts_is_not_even_parsed(service: Service, body: bytes) -> None:
    """Of 32 MiB of it the parser makes gigabytes, and nobody is answered meanwhile."""
    headers = {"Content-Type": "application/json"}
    for path in ("/v1/predict", "/v1/learn/batch", "/v1/records", "/label-studio/webhook"):
        response = service.client.post(path, content=body, headers=headers)
        assert response.status_code == 413, path
        assert "more parts" in response.json()["detail"]


def test_a_thousand_wrong_labels_are_one_error(service: Service) -> None:
    one = {"key": "k", "label": "cat", "record": "eA==", "candidates": [1] * 2_000}
    asked = {"fingerprint": "a", "codec": "b", "examples": [one] * 3}
    with pytest.raises(ValidationError) as refused:
        RecordsAsked.model_validate_json(json.dumps(asked), strict=True)
    assert refused.value.error_count() == 3
    assert service.client.post("/v1/records", json=asked).status_code == 422


def test_large_files_need_no_disk(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be full, or not there at all."""

    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", full)
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "PNG")
    assert len(out.getvalue()) > 2_000_000
    form: dict[str, Any] = {"files": {"image": ("a.png", out.getvalue())}, "data": {"label": "x"}}
    assert service.client.post("/v1/learn", **form).status_code == 200


def test_one_client_asks_so_often_and_no_oftener() -> None:
    with opened(None, AccessTokens({}), per_second=0.001, burst=3) as service:
        statuses = [service.client.get("/v1/stats").status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert service.client.get("/healthz").status_code == 200


def test_clients_with_tokens_are_counted_apart() -> None:
    with opened(None, TOKENS, per_second=0.001, burst=2) as service:
        for token in (READ, WRITE):
            answers = [service.client.get("/v1/stats", headers=bearer(token)) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_one_token_is_one_client_however_it_is_spelt() -> None:
    with opened(None, TOKENS, per_second=0.001, burst=3) as service:
        spelt = [f"Bearer {READ}", f"bearer   {READ} "]
        for user in ("a", "b", "c"):
            spelt.append("Basic " + base64.b64encode(f"{user}:{READ}".encode()).decode())
        answers = [
            service.client.get("/v1/stats", headers={"Authorization": header}) for header in spelt
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]


def test_invented_methods_and_paths_do_not_fill_the_metrics(service: Service) -> None:
    for number in range(20):
        service.client.request(f"METHOD{number}", f"/path/{number}")
    told = service.client.get("/metrics").text
    assert "METHOD" not in told
    assert "/path/" not in told
    assert 'method="other",route="other"' in told


def refused(service: Service) -> dict[str, float]:
    """What the metrics say of requests turned away, by status."""
    told = service.client.get("/metrics", headers=bearer(READ)).text
    found = re.findall(r'^anytimecl_refused_total\{why="(\d+)"\} (.+)$', told, re.MULTILINE)
    return {why: float(count) for why, count in found}


def test_whoever_is_turned_away_is_counted_wherever_that_happens() -> None:
    with opened(None, TOKENS, upload_bytes=20_000, encode_waiting=1) as service:
        client, write = service.client, bearer(WRITE)
        assert client.get("/v1/stats").status_code == 401
        assert client.post("/v1/learn", json=LEARN, headers=bearer(READ)).status_code == 403
        typed = {"Content-Type": "application/json"} | write
        by_head = client.post("/v1/learn", content=b" " * 30_000, headers=typed)
        parts = (b" " * 5000 for _ in range(10))
        on_the_way = client.post("/v1/learn", content=parts, headers=typed)
        assert (by_head.status_code, on_the_way.status_code) == (413, 413)
        plain = client.post(
            "/v1/learn", content=b"x", headers={"Content-Type": "text/plain"} | write
        )
        assert plain.status_code == 415
        asked = {"images": [text(1), text(2)], "labels": ["a"]}
        assert client.post("/v1/predict", json=asked, headers=write).status_code == 429
        # Not turned away: looked at, and found wrong.
        assert client.post("/v1/learn", json={}, headers=write).status_code == 422
        assert client.get("/nothing", headers=write).status_code == 404
        assert refused(service) == {"401": 1, "403": 1, "413": 2, "415": 1, "429": 1}


def test_too_many_labels_and_images(service: Service) -> None:
    many = [f"label {number}" for number in range(LABELS + 1)]
    for asked in (
        {"images": [text(1)], "labels": many},
        {"images": [text(1)] * (IMAGES + 1), "labels": ["a"]},
        {"images": [text(1)], "labels": ["x" * 201]},
        {"images": [], "labels": ["a"]},
        {"images": [text(1)], "labels": []},
    ):
        assert service.client.post("/v1/predict", json=asked).status_code == 422
    files = [("images", ("x", png(1)))] * (IMAGES + 1)
    form = service.client.post("/v1/predict", files=files, data={"labels": "a"})
    assert form.status_code == 400
    form = service.client.post("/v1/predict", files=files[:1], data={"labels": many + many[:20]})
    assert form.status_code in (400, 422)


# --- hostile files -------------------------------------------------------------------------------


def bomb(side: int) -> bytes:
    """A PNG of few bytes and many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


HOSTILE = {
    "empty": b"",
    "text": b"not an image",
    "html": b"<html><script>alert(1)</script>",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "cut": png(1)[:60],
    "bomb": bomb(50_000),
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n",
    "zip": b"PK\x03\x04" + b"\0" * 60,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_and_teach_nothing(service: Service, name: str) -> None:
    data = HOSTILE[name]
    asked: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("learn", "image", {"label": "x"}),
        ("predict", "images", {"labels": ["x"]}),
    )
    for path, field, rest in asked:
        form = service.client.post(f"/v1/{path}", files={field: ("a.png", data)}, data=rest)
        encoded = base64.b64encode(data).decode()
        value: Any = encoded if field == "image" else [encoded]
        as_json = service.client.post(f"/v1/{path}", json={field: value, **rest})
        for response in (form, as_json):
            assert response.status_code == 422, response.text
            assert response.headers["content-type"] == "application/problem+json"
    assert not len(service.engine.classifier)


def test_more_pixels_than_allowed() -> None:
    out = io.BytesIO()
    Image.new("RGB", (200, 200)).save(out, "PNG")
    with opened(None, AccessTokens({}), pixels=10_000) as service:
        response = service.client.post(
            "/v1/learn", files={"image": out.getvalue()}, data={"label": "x"}
        )
        assert response.status_code == 422
        assert "more than 10000 pixels" in response.json()["detail"]


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("text/plain", b"hello", 415),
        ("", b"hello", 415),
        ("application/x-www-form-urlencoded", b"label=cat", 415),
        ("application/json", b"{", 422),
        ("application/json", b"\xff\xfe", 422),
        ("application/json", b'{"image": 1, "label": "cat"}', 422),
        ("application/json", b'{"image": "not base64!", "label": "cat"}', 422),
        ("application/json", b'{"image": "AAAA", "label": "cat", "more": 1}', 422),
        ("application/json", b"[" * 100_000, 422),
        ("multipart/form-data", b"no boundary", 400),
        ("multipart/form-data; boundary=x", b"--x\r\nrubbish", 422),
        ("multipart/form-data; boundary=x", b"--x--\r\n", 422),
    ],
)  # fmt: skip
def test_bodies_that_make_no_sense(service: Service, kind: str, body: bytes, status: int) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = service.client.post("/v1/learn", content=body, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status


@pytest.mark.parametrize("key", ["a" * 201, "two words", "caf\xe9", "tab\tkey", ""])
def test_keys_that_are_none(service: Service, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    assert service.client.post("/v1/learn", json=LEARN, headers=headers).status_code == 422


def test_labels_cannot_forge_events_or_headers(service: Service) -> None:
    for label in ("a\r\nSet-Cookie: x=1", "a\n\nevent: job\ndata: {}", "\x00", "\ud800"):
        asked = '{"image": "%s", "label": %s}' % (text(1), json.dumps(label))  # noqa: UP031
        response = service.client.post(
            "/v1/learn", content=asked, headers={"Content-Type": "application/json"}
        )
        assert "set-cookie" not in response.headers
        if response.status_code == 200:
            assert "\n" not in response.json()["label"]
        else:
            assert response.status_code == 422


# --- no stack traces -----------------------------------------------------------------------------


def test_a_bug_tells_nothing_to_clients(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a secret in /home/somebody")

    monkeypatch.setattr(service.engine.classifier, "stats", broken)
    response = service.client.get("/v1/stats")
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["x-request-id"] in caplog.text  # the log says more
    assert "a secret" in caplog.text


def test_a_failing_disk_is_told_without_paths(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise StoreError("The disk of /srv/memory is full.")

    monkeypatch.setattr(service.engine.classifier.memory, "append_row", full)
    response = service.client.post("/v1/learn", json=LEARN)
    assert response.status_code == 503
    assert "/srv" not in response.text
    assert "retry-after" in response.headers
