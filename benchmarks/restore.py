"""A memory that is taught and backed up while it is served, and restored elsewhere.

    python -m benchmarks.restore [--lessons 500] [--backups 5] [--tiny]

Someone who labels for an hour gives some 500 examples: that many are learned over HTTP, one after
another without pauses, while another client predicts continuously and the memory is backed up from
time to time, alternately by `anytimecl memory backup` beside the service and by `GET /v1/backup`.
Every copy is then served by a server of its own and predicts 16 images; the responses must be, byte
for byte, those of a memory that learned the same examples and was never copied. The last copy must
respond as the service itself did when it was taken. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.load import LABELS, predictor
from benchmarks.service import Connection, Server, Tally, Verdicts, files, form, noise
from typer.testing import CliRunner

from anytimecl.cli import app
from anytimecl.client import Client

Start = Callable[[Path], Server]


def backup(server: Server, memory: Path, to: Path, number: int) -> None:
    """Back up beside the running service or over the network, alternately."""
    if number % 2:
        Client(f"http://{server.host}:{server.port}").backup(to)
        return
    done = CliRunner().invoke(app, ["memory", "backup", str(memory), str(to)])
    assert done.exit_code == 0, done.output


async def learn(connection: Connection, number: int) -> None:
    body, kind = form([("label", LABELS[number % 10])], "image", noise(number))
    status, told = await connection.post("/v1/learn", body, kind, f"lesson-{number}")
    assert status == 200, told


async def answers(server: Server, images: list[bytes]) -> list[bytes]:
    """Responses for all images, as raw bytes."""
    connection, told = Connection(server), []
    for image in images:
        body, kind = form([("labels", label) for label in LABELS], "images", image)
        status, content = await connection.post("/v1/predict", body, kind)
        assert status == 200, content
        told.append(content)
    connection.close()
    return told


async def teach(
    server: Server, given: argparse.Namespace, folder: Path, images: list[bytes]
) -> tuple[list[Path], Tally]:
    """Learn all examples, with backups meanwhile and one at the end."""
    stop, tally, copies = time.monotonic() + 86_400, Tally(), []
    asking = asyncio.create_task(predictor(server, images, stop, tally))
    connection, memory = Connection(server), folder / "memory"
    waiting: asyncio.Task[None] | None = None
    for number in range(given.lessons):
        await learn(connection, number)
        if number % max(1, given.lessons // given.backups) == 1 and not waiting:
            copies.append(folder / f"copy-{number}")
            copying = asyncio.to_thread(backup, server, memory, copies[-1], len(copies))
            waiting = asyncio.create_task(copying)
        elif waiting and waiting.done():
            waiting = waiting.result()
    if waiting:
        await waiting
    copies.append(folder / "copy-last")
    await asyncio.to_thread(backup, server, memory, copies[-1], len(copies))
    asking.cancel()
    connection.close()
    return copies, tally


async def reference(
    start: Start, folder: Path, images: list[bytes], counts: set[int]
) -> dict[int, list[bytes]]:
    """Responses of a memory that learned the same number of examples and was never copied."""
    server, found = start(folder / "reference"), {}
    connection = Connection(server)
    for number in range(max(counts)):
        await learn(connection, number)
        if number + 1 in counts:
            found[number + 1] = await answers(server, images)
    server.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lessons", type=int, default=500)
    parser.add_argument("--backups", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a random model of a few kilobytes")
    given = parser.parse_args()
    images = files(16)
    with tempfile.TemporaryDirectory() as made:
        folder, words = Path(made), []
        if given.tiny:
            from tests.backbone import tiny

            words = ["--model", str(tiny.clip(folder / "model"))]

        def start(memory: Path) -> Server:
            return Server(memory, *words)

        server = start(folder / "memory")
        copies, tally = asyncio.run(teach(server, given, folder, images))
        served = asyncio.run(answers(server, images))
        server.stop()
        restored: dict[int, list[bytes]] = {}
        for copy in copies:
            other = start(copy)
            _, told = asyncio.run(Connection(other).get("/v1/stats"))
            taught = json.loads(told)["examples"]
            restored[taught] = asyncio.run(answers(other, images))
            other.stop()
        expected = asyncio.run(reference(start, folder, images, set(restored)))
    print(f"{given.lessons} lessons, {len(tally.seconds)} predictions meanwhile, answers "
          f"{dict(tally.statuses)}, {len(copies)} backups while serving")  # fmt: skip
    verdicts = Verdicts()
    for taught, told in restored.items():
        same = sum(one == other for one, other in zip(told, expected[taught], strict=True))
        what = f"restored with {taught} examples, against one taught the same and never copied"
        verdicts.say(same == len(told), f"{what}: {same} of {len(told)} answers identical")
    same = sum(one == other for one, other in zip(restored[given.lessons], served, strict=True))
    what = "the last copy against the service itself"
    verdicts.say(same == len(served), f"{what}: {same} of {len(served)} answers identical")
    verdicts.end()


if __name__ == "__main__":
    main()
