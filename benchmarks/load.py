"""A service under load, spoken to from another process over loopback.

    python -m benchmarks.load [--seconds 300] [--predictors 50] [--learners 2]

1. Predictors alone, for a third of the time; then the same while learners teach, for the rest.
   Prints the quantiles of both and their ratio, every status that came, and the server's RAM.
2. The server is killed while learners teach, and started again, several times. Prints how many
   acknowledged examples are missing or stored twice.
Ends with 1 if a bound does not hold: an error other than 429, a p99 over three times that without
learning, RAM that goes on growing, an acknowledged example that is not there exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

from benchmarks.learn import pictures

from anytimecl.memory import open_memory

LABELS = [f"label {number}" for number in range(10)]
RATIO = 3.0  # p99 with learning over p99 without, at most
GROWTH = 64 << 20  # bytes of RAM from the middle of the run to its end, besides stored examples


class Server:
    """`anytimecl serve` in a process of its own."""

    def __init__(self, memory: Path) -> None:
        words = ["serve", "--memory", str(memory), "--port", "0", "--per-second", "100000"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "anytimecl.cli", *words], text=True, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://(\S+)", line)
        if found is None:
            raise SystemExit(f"The server did not start: {line}")
        parts = urlsplit(found[0])
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    def resident(self) -> int:
        """Bytes of RAM."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


@dataclass
class Tally:
    """What came back."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


class Connection:
    """One kept-alive connection, by hand: a client library would cost more than it measures."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, kind: str, key: str = "") -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._server.host, self._server.port)
        reader, writer = self._streams
        extra = f"Idempotency-Key: {key}\r\n" if key else ""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{extra}"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            told = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", told, re.IGNORECASE)
            content = await reader.readexactly(int(length[1])) if length else b""
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            raise
        if "connection: close" in told.lower():
            self.close()
        return int(told.split()[1]), content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def form(fields: list[tuple[str, str]], name: str, image: bytes) -> tuple[bytes, str]:
    """A multipart body and its type."""
    edge = "edge-of-a-part"
    parts = [f'--{edge}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode()
             for k, v in fields]  # fmt: skip
    head = f'--{edge}\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n'
    parts.append(head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + image + b"\r\n")
    return b"".join(parts) + f"--{edge}--\r\n".encode(), f"multipart/form-data; boundary={edge}"


async def predictor(server: Server, images: list[bytes], end: float, tally: Tally) -> None:
    connection, fields = Connection(server), [("labels", label) for label in LABELS]
    bodies = [form(fields, "images", image) for image in images]
    number = 0
    while time.monotonic() < end:
        body, kind = bodies[number % len(bodies)]
        number += 1
        began = time.monotonic()
        try:
            status, _ = await connection.post("/v1/predict", body, kind)
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.statuses[type(error).__name__] += 1
            await asyncio.sleep(0.1)
            continue
        tally.statuses[str(status)] += 1
        if status == 200:
            tally.seconds.append(time.monotonic() - began)
        else:
            await asyncio.sleep(1)
    connection.close()


async def learner(
    server: Server, images: list[bytes], end: float, tally: Tally, acknowledged: dict[str, int]
) -> None:
    connection, number = Connection(server), 0
    while time.monotonic() < end:
        body, kind = form([("label", LABELS[number % 10])], "image", images[number % len(images)])
        number += 1
        key = uuid.uuid4().hex
        began = time.monotonic()
        try:
            status, content = await connection.post("/v1/learn", body, kind, key)
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.statuses[type(error).__name__] += 1
            return  # the server was killed
        tally.statuses[str(status)] += 1
        if status == 200:
            tally.seconds.append(time.monotonic() - began)
            acknowledged[key] = json.loads(content)["id"]
        else:
            await asyncio.sleep(1)
    connection.close()


async def watch(server: Server, end: float, seen: list[tuple[float, int]]) -> None:
    while time.monotonic() < end:
        seen.append((time.monotonic(), server.resident()))
        await asyncio.sleep(1)


def told(name: str, tally: Tally, seconds: float) -> float:
    """Print a line; the p99."""
    cuts = quantiles(tally.seconds, n=100)
    print(
        f"{name}: {len(tally.seconds) / seconds:.1f}/s, p50 {1000 * cuts[49]:.0f} ms, "
        f"p99 {1000 * cuts[98]:.0f} ms, statuses {dict(tally.statuses)}",
        flush=True,
    )
    return cuts[98]


async def load(server: Server, given: argparse.Namespace, images: list[bytes]) -> list[str]:
    """The first part; what did not hold."""
    alone, beside, lessons = Tally(), Tally(), Tally()
    acknowledged: dict[str, int] = {}
    warm = time.monotonic() + 5
    await asyncio.gather(*(predictor(server, images, warm, Tally()) for _ in range(4)))
    first, second = given.seconds / 3, given.seconds * 2 / 3
    end = time.monotonic() + first
    await asyncio.gather(*(predictor(server, images, end, alone) for _ in range(given.predictors)))
    quiet = told("predictions alone", alone, first)
    memory: list[tuple[float, int]] = []
    end = time.monotonic() + second
    await asyncio.gather(
        *(predictor(server, images, end, beside) for _ in range(given.predictors)),
        *(learner(server, images, end, lessons, acknowledged) for _ in range(given.learners)),
        watch(server, end, memory),
    )
    busy = told("predictions beside learning", beside, second)
    told("lessons", lessons, second)
    middle, last = memory[len(memory) // 2][1], memory[-1][1]
    print(
        f"p99 beside learning over p99 alone: {busy / quiet:.2f} (at most {RATIO:g})\n"
        f"RAM of the server: {memory[0][1] >> 20} MiB at first, {middle >> 20} in the middle, "
        f"{last >> 20} at the end, {len(acknowledged)} examples learned",
        flush=True,
    )
    wrong = []
    strange = (alone.statuses + beside.statuses + lessons.statuses).keys() - {"200", "429"}
    if strange:
        wrong.append(f"there were errors other than 429: {sorted(strange)}")
    if busy > RATIO * quiet:
        wrong.append("learning slows predictions down too much")
    if last - middle > GROWTH:
        wrong.append("RAM goes on growing")
    return wrong


def kills(memory: Path, images: list[bytes], rounds: int) -> list[str]:
    """The second part; what did not hold."""
    acknowledged: dict[str, int] = {}
    for number in range(rounds):
        server = Server(memory)

        async def teach(server: Server = server, number: int = number) -> None:
            end = time.monotonic() + 60
            tasks = [
                asyncio.create_task(learner(server, images, end, Tally(), acknowledged))
                for _ in range(4)
            ]
            await asyncio.sleep(2 + 1.7 * number)
            server.kill()
            await asyncio.gather(*tasks)

        asyncio.run(teach())
    with open_memory(memory, read_only=True) as store:
        found = {key: store.has_key(key) for key in acknowledged}
        missing = sum(found[key] != example for key, example in acknowledged.items())
        twice = len(acknowledged) - len(set(acknowledged.values()))
        more = len(store) - len(acknowledged)
    print(
        f"killed {rounds} times: {len(acknowledged)} acknowledged, {missing} missing, "
        f"{twice} stored twice, {more} stored whose answer the kill cut off",
        flush=True,
    )
    return ["acknowledged examples are not there exactly once"] if missing or twice else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--predictors", type=int, default=50)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    given = parser.parse_args()
    images = files(16)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "load")
        try:
            wrong += asyncio.run(load(server, given, images))
        finally:
            with suppress(subprocess.TimeoutExpired):
                server.stop()
            server.process.kill()
        if given.kills:
            wrong += kills(Path(folder) / "kills", images, given.kills)
    for line in wrong:
        print(f"DOES NOT HOLD: {line}")
    raise SystemExit(bool(wrong))


def files(count: int) -> list[bytes]:
    """JPEG files of 640 x 480."""
    import io

    made = []
    for picture in pictures(count):
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=85)
        made.append(out.getvalue())
    return made


if __name__ == "__main__":
    main()
