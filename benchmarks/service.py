"""A service in a process of its own, and a connection to it; shared by the load benchmarks."""

from __future__ import annotations

import asyncio
import io
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import numpy as np
from benchmarks.learn import pictures
from PIL import Image


class Server:
    """`anytimecl serve` in a process of its own."""

    def __init__(self, memory: Path, *more: str) -> None:
        words = ["serve", "--memory", str(memory), "--port", "0", "--per-second", "100000", *more]
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
        """Resident memory in bytes."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def peak(self) -> int:
        """Peak resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]

    def limit_files(self, size: int) -> None:
        """Limit the size of files from now on, which emulates a full disk."""
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


@dataclass
class Tally:
    """Responses received."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


class Connection:
    """A minimal keep-alive connection, since a client library would dominate the measurement."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    async def post(self, path: str, body: bytes, kind: str, key: str = "") -> tuple[int, bytes]:
        extra = f"Idempotency-Key: {key}\r\n" if key else ""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{extra}"
        return await self._ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _ask(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._server.host, self._server.port)
        reader, writer = self._streams
        writer.write(request)
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


class Verdicts:
    """Prints whether each condition holds."""

    def __init__(self) -> None:
        self.wrong = 0

    def say(self, holds: bool, what: str) -> None:
        """Print one condition."""
        self.wrong += not holds
        print(f"{'HOLDS' if holds else 'DOES NOT HOLD'}: {what}", flush=True)

    def end(self) -> NoReturn:
        """Exit, with 1 if a condition does not hold."""
        raise SystemExit(bool(self.wrong))


def form(fields: list[tuple[str, str]], name: str, image: bytes) -> tuple[bytes, str]:
    """A multipart body and its content type."""
    edge = "edge-of-a-part"
    parts = [f'--{edge}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode()
             for k, v in fields]  # fmt: skip
    head = f'--{edge}\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n'
    parts.append(head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + image + b"\r\n")
    return b"".join(parts) + f"--{edge}--\r\n".encode(), f"multipart/form-data; boundary={edge}"


def files(count: int) -> list[bytes]:
    """JPEG files of 640 x 480."""
    made = []
    for picture in pictures(count):
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=85)
        made.append(out.getvalue())
    return made


def noise(number: int) -> bytes:
    """A unique image by number, since a repeated image is the same example."""
    pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
