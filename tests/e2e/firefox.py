"""Debian's Firefox by WebDriver BiDi, with the standard library alone.

Playwright speaks BiDi too, but asks for a command that this Firefox does not have.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

WAIT = """(async () => {
    const end = Date.now() + %d;
    while (Date.now() < end) {
        const value = await (%s);
        if (value) return JSON.stringify(value);
        await new Promise((done) => setTimeout(done, 50));
    }
    return null;
})()"""


class Firefox:
    """One tab, driven by scripts."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=180)
        self._left = b""
        self._number = 0
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET /session HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        head += (
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        while b"\r\n\r\n" not in self._left:
            self._left += self._socket.recv(4096)
        answer, _, self._left = self._left.partition(b"\r\n\r\n")
        assert b" 101 " in answer, answer
        self.about = self.send("session.new", {"capabilities": {}})["capabilities"]
        self._tab = self.send("browsingContext.getTree", {})["contexts"][0]["context"]

    def close(self) -> None:
        """Let go of it; it goes on."""
        self._socket.close()

    def open(self, url: str) -> None:
        """And wait until it is loaded."""
        self.send(
            "browsingContext.navigate", {"context": self._tab, "url": url, "wait": "complete"}
        )

    def wait(self, script: str, seconds: int = 120) -> Any:
        """The value of an expression as soon as it is true."""
        found = self.send(
            "script.evaluate",
            {
                "expression": WAIT % (1000 * seconds, script),
                "target": {"context": self._tab},
                "awaitPromise": True,
            },
        )
        assert found["type"] == "success", found
        assert found["result"]["type"] == "string", f"It never came: {script}"
        return json.loads(found["result"]["value"])

    def screenshot(self) -> bytes:
        """A PNG of what is seen."""
        taken = self.send("browsingContext.captureScreenshot", {"context": self._tab})
        return base64.b64decode(taken["data"])

    def send(self, method: str, params: dict[str, Any]) -> Any:
        """A command and its result; events are passed over."""
        self._number += 1
        asked = json.dumps({"id": self._number, "method": method, "params": params}).encode()
        mask, size = os.urandom(4), len(asked)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
        if size > 0xFFFF:
            length = b"\xff" + struct.pack(">Q", size)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(asked))
        self._socket.sendall(b"\x81" + length + mask + masked)
        while True:
            told = json.loads(self._message())
            if told.get("id") == self._number:
                assert told["type"] == "success", told
                return told["result"]

    def _message(self) -> bytes:
        whole = b""
        while True:
            first, size = self._take(2)
            if size == 126:
                [size] = struct.unpack(">H", self._take(2))
            elif size == 127:
                [size] = struct.unpack(">Q", self._take(8))
            data = self._take(size)
            if first & 0x0F <= 2:  # text, or more of it
                whole += data
                if first & 0x80:
                    return whole

    def _take(self, size: int) -> bytes:
        while len(self._left) < size:
            got = self._socket.recv(1 << 16)
            assert got, "Firefox has gone."
            self._left += got
        taken, self._left = self._left[:size], self._left[size:]
        return taken


@contextmanager
def firefox() -> Iterator[Firefox]:
    """Started without a window; it is gone when this ends."""
    found = shutil.which("firefox-esr")
    assert found, "There is no firefox-esr. As root: apt-get install firefox-esr"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [found, "--headless", "--no-remote", "--profile", profile]
        process = subprocess.Popen(
            [*command, "--remote-debugging-port", "0"],
            env={**os.environ, "HOME": profile},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        with process:
            try:
                assert process.stderr is not None
                for line in process.stderr:
                    if told := re.search(r"WebDriver BiDi listening on ws://127.0.0.1:(\d+)", line):
                        break
                else:
                    raise AssertionError("Firefox did not say where it listens.")
                with closing(Firefox(int(told[1]))) as driven:
                    yield driven
            finally:
                process.kill()
