"""Clients that mean harm, over loopback alone: bounded in number and in time.

    python -m benchmarks.hostile PORT SECONDS [ATTACK ...]

Each attacks until `end`, disconnects without reading responses, and counts what it sent. They run
in a process of their own, so that their cost is not attributed to the server.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import struct
import sys
import time
import zlib
from collections import Counter
from contextlib import suppress

from PIL import Image

Address = tuple[str, int]


def picture(mode: str, size: tuple[int, int]) -> bytes:
    """A PNG of one colour: a few bytes, whatever its size."""
    out = io.BytesIO()
    Image.new(mode, size).save(out, "PNG")
    return out.getvalue()


def form(images: list[bytes]) -> bytes:
    """A complete prediction request."""
    edge = "edge-of-a-part"
    file = f'--{edge}\r\nContent-Disposition: form-data; name="images"; filename="x"\r\n\r\n'
    labels = "".join(
        f'--{edge}\r\nContent-Disposition: form-data; name="labels"\r\n\r\nlabel {number}\r\n'
        for number in range(2)
    )
    body = labels.encode() + b"".join(file.encode() + image + b"\r\n" for image in images)
    body += f"--{edge}--\r\n".encode()
    return request(body, f"multipart/form-data; boundary={edge}")


def request(body: bytes, kind: str) -> bytes:
    return head(len(body), kind) + body


def head(length: int, kind: str) -> bytes:
    line = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{line}Content-Length: {length}\r\n\r\n".encode()


async def send_and_hang_up(address: Address, data: bytes, stay: float) -> None:
    with suppress(OSError):
        _, writer = await asyncio.open_connection(*address)
        with suppress(OSError):
            writer.write(data)
            await asyncio.wait_for(writer.drain(), 10)
            await asyncio.sleep(stay)
        writer.transport.abort()


async def large_images(address: Address, end: float, sent: Counter[str]) -> None:
    """193 KiB per request with 32 images of 49.7 megapixels; then as many as are accepted."""
    image = picture("1", (7050, 7050))
    for count in (32, 32, 32):
        await send_and_hang_up(address, form([image] * count), 0.2)
        sent["large images"] += count
    while time.monotonic() < end:
        await send_and_hang_up(address, form([image] * 4), random.uniform(0.1, 2))
        sent["large images"] += 4


async def tiny_batches(address: Address, end: float, sent: Counter[str]) -> None:
    """32 images per request that cost nothing to send, and a pass through the trunk each."""
    data = form([picture("1", (8, 8))] * 32)
    while time.monotonic() < end:
        await send_and_hang_up(address, data, random.uniform(0.1, 2))
        sent["tiny images"] += 32


async def empty_parts(address: Address, end: float, sent: Counter[str]) -> None:
    """Files of nothing but empty chunks and comments, which decoders parse one by one."""
    gif = io.BytesIO()
    Image.new("P", (8, 8)).save(gif, "GIF")
    plain = gif.getvalue()
    at = plain.index(b",", 13)
    comments = plain[:at] + b"!\xfe\0" * 700_000 + plain[at:]
    png = picture("1", (8, 8))
    chunk = struct.pack(">I", 0) + b"abCd" + struct.pack(">I", zlib.crc32(b"abCd"))
    chunks = png[:33] + chunk * 150_000 + png[33:]
    data = [form([comments] * 4), form([chunks] * 4)]
    while time.monotonic() < end:
        await send_and_hang_up(address, random.choice(data), random.uniform(0.1, 2))
        sent["files of empty parts"] += 4


async def big_bodies(address: Address, end: float, sent: Counter[str]) -> None:
    """Requests of the maximum size, with base64 that is not an image."""
    rubbish = base64.b64encode(random.Random(0).randbytes(700_000)).decode()
    data = request(
        json.dumps({"images": [rubbish] * 32, "labels": ["a", "b"]}).encode(), "application/json"
    )
    while time.monotonic() < end:
        await send_and_hang_up(address, data, random.uniform(0.5, 2))
        sent["MiB of rubbish"] += len(data) >> 20


async def many_parts(address: Address, end: float, sent: Counter[str]) -> None:
    """JSON that takes thirty times its size in RAM, and seconds to parse."""
    most = 31 << 20
    keys = b"".join(b',"%x":1' % number for number in range(most // 10))
    data = [
        request(b'{"images":["x"],"labels":[' + b"[]," * (most // 3) + b"[]]}", "application/json"),
        request(b'{"images":["x"]' + keys + b"}", "application/json"),
    ]
    while time.monotonic() < end:
        await send_and_hang_up(address, random.choice(data), random.uniform(1, 3))
        sent["MiB of JSON of nothing but parts"] += most >> 20


async def crumbs(address: Address, end: float, sent: Counter[str]) -> None:
    """Bodies in chunks of one byte."""
    start = head(0, "application/json").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    data = start + b"1\r\n \r\n" * 100_000
    while time.monotonic() < end:
        await send_and_hang_up(address, data, random.uniform(0.1, 1))
        sent["chunks of one byte"] += 100_000


async def scans_and_floats(address: Address, end: float, sent: Counter[str]) -> None:
    """Images whose decoders use far more memory than their pixels."""
    out = io.BytesIO()
    Image.new("F", (4600, 4600)).save(out, "TIFF", compression="tiff_adobe_deflate")
    data = [form([jpeg_in_scans(7048)]), form([out.getvalue()])]
    while time.monotonic() < end:
        await send_and_hang_up(address, random.choice(data), random.uniform(0.1, 2))
        sent["images that are held many times over"] += 1


def jpeg_in_scans(side: int) -> bytes:
    """A grey sequential JPEG with its four components in separate scans."""

    def segment(marker: int, content: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content

    frame = b"".join(bytes([one, 0x11, 0]) for one in range(1, 5))
    parts = [
        b"\xff\xd8",
        segment(0xDB, bytes([0]) + bytes([1] * 64)),
        segment(0xC0, struct.pack(">BHHB", 8, side, side, 4) + frame),
        *(segment(0xC4, bytes([table, 1, *[0] * 15, 0])) for table in (0x00, 0x10)),
    ]
    blocks = (-(-side // 8)) ** 2  # of two bits each: no change
    for one in range(1, 5):
        parts += [segment(0xDA, bytes([1, one, 0, 0, 0x3F, 0])), bytes(-(-blocks // 4))]
    return b"".join([*parts, b"\xff\xd9"])


async def new_labels(address: Address, end: float, sent: Counter[str]) -> None:
    """As many new labels as a request may have."""
    image = base64.b64encode(picture("1", (8, 8))).decode()
    while time.monotonic() < end:
        labels = [f"thing {random.getrandbits(60)}" for _ in range(2000)]
        body = json.dumps({"images": [image], "labels": labels}).encode()
        await send_and_hang_up(address, request(body, "application/json"), random.uniform(0.5, 2))
        sent["new labels"] += len(labels)


async def long_reads(address: Address, end: float, sent: Counter[str]) -> None:
    """Requests whose cost grows with the memory."""
    while time.monotonic() < end:
        path = random.choice(("backup", "export", "examples?suspicious=true&limit=200", "audit"))
        data = f"GET /v1/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        await send_and_hang_up(address, data, random.uniform(0.1, 2))
        sent["long reads"] += 1


async def idle_sockets(address: Address, end: float, sent: Counter[str]) -> None:
    """More connections than allowed, each with an incomplete head."""
    await hold(address, end, b"GET / HTTP/1.1\r\nX-Slow: ")
    sent["floods of idle sockets"] += 1


async def slow_bodies(address: Address, end: float, sent: Counter[str]) -> None:
    """More connections than allowed, each with an incomplete body."""
    await hold(address, end, head(10**6, "application/json") + b"{")
    sent["floods of bodies that do not end"] += 1


async def hold(address: Address, end: float, data: bytes) -> None:
    held: list[asyncio.StreamWriter] = []
    while time.monotonic() < end:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(*address)
            writer.write(data)
            held.append(writer)
        if len(held) > 700:
            held.pop(0).transport.abort()
        await asyncio.sleep(0.01)
    for writer in held:
        writer.transport.abort()


async def hoards(address: Address, end: float, sent: Counter[str]) -> None:
    """As many bytes as all uploads may have together, each without its last byte."""
    most = 31 << 20
    data = head(most + 1, "application/json") + bytes(most)
    while time.monotonic() < end:
        await asyncio.gather(*(send_and_hang_up(address, data, 10) for _ in range(5)))
        sent["uploads without their last byte"] += 5


async def slow_readers(address: Address, end: float, sent: Counter[str]) -> None:
    """Large responses that are never read."""
    data = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
    while time.monotonic() < end:
        await send_and_hang_up(address, data, 5)
        sent["answers never read"] += 100


ATTACKS = {  # concurrent clients of each
    large_images: 3,
    tiny_batches: 3,
    empty_parts: 2,
    big_bodies: 2,
    many_parts: 1,
    crumbs: 1,
    scans_and_floats: 2,
    new_labels: 2,
    long_reads: 2,
    hoards: 1,
    slow_bodies: 1,
    idle_sockets: 1,
    slow_readers: 3,
}


async def all_at_once(address: Address, end: float, names: list[str]) -> Counter[str]:
    """Run all attacks, or those named, until `end`."""
    sent: Counter[str] = Counter()
    chosen = [
        attack
        for attack, count in ATTACKS.items()
        if not names or attack.__name__ in names
        for _ in range(count)
    ]
    await asyncio.gather(*(attack(address, end, sent) for attack in chosen))
    return sent


if __name__ == "__main__":
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    until = time.monotonic() + seconds
    counted = asyncio.run(all_at_once(("127.0.0.1", port), until, sys.argv[3:]))
    print(json.dumps(counted))
