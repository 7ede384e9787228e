"""A service under load, spoken to from another process over loopback.

    python -m benchmarks.load [--seconds 300] [--predictors 50] [--learners 2] [--parts load,...]

1. Predictors alone, for a third of the time; then beside learners, for the rest.
   Prints the quantiles of both and their ratio, every status that came, and the server's RAM.
2. A few honest clients alone, then beside the attacks of `benchmarks.hostile`, all at once and from
   the same machine. Prints what the honest ones saw, what was sent, and the server's peak of RAM.
3. The disk is full while they predict and learn, and then has space again.
4. The server is killed during learning, and restarted, several times. Prints how many
   acknowledged examples are missing or stored twice.
Exits with 1 if a bound does not hold: an error other than 429 (or, with a full disk, 503 for a
learn request), a p99 over three times that without learning or attackers, more RAM than documented,
RAM that keeps growing, an acknowledged example that is not stored exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.service import Connection, Server, Tally, Verdicts, files, form, noise

from anytimecl.memory import open_memory
from benchmarks import hostile

LABELS = [f"label {number}" for number in range(10)]
RATIO = 3.0  # of p99 with learning to p99 without, at most
DOCUMENTED = 1900 << 20  # bytes of RAM, limit documented in docs/serve.md
PARTS = ("load", "attacks", "disk", "kills")
GROWTH = 64 << 20  # bytes of RAM in the second half of the run, besides stored examples


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


async def learner(server: Server, end: float, tally: Tally, acknowledged: dict[str, int]) -> None:
    """Learns each image once; repeated images would be the same example."""
    connection, number = Connection(server), random.getrandbits(60)
    while time.monotonic() < end:
        body, kind = form([("label", LABELS[number % 10])], "image", noise(number))
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
    """Print a line; returns the p99."""
    cuts = quantiles(tally.seconds or [0.0, 0.0], n=100)
    print(
        f"{name}: {len(tally.seconds) / seconds:.1f}/s, p50 {1000 * cuts[49]:.0f} ms, "
        f"p99 {1000 * cuts[98]:.0f} ms, statuses {dict(tally.statuses)}",
        flush=True,
    )
    return cuts[98]


async def load(
    server: Server, given: argparse.Namespace, images: list[bytes], verdicts: Verdicts
) -> None:
    """Part 1."""
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
        *(learner(server, end, lessons, acknowledged) for _ in range(given.learners)),
        watch(server, end, memory),
    )
    busy = told("predictions beside learning", beside, second)
    told("lessons", lessons, second)
    middle, last = memory[len(memory) // 2][1], memory[-1][1]
    print(
        f"RAM of the server: {memory[0][1] >> 20} MiB at first, {middle >> 20} in the middle, "
        f"{last >> 20} at the end, {len(acknowledged)} examples learned",
        flush=True,
    )
    strange = (alone.statuses + beside.statuses + lessons.statuses).keys() - {"200", "429"}
    verdicts.say(not strange, f"errors other than 429: {sorted(strange) or 'none'}")
    verdicts.say(
        busy <= RATIO * quiet,
        f"p99 beside learning over p99 alone: {busy / quiet:.2f} (at most {RATIO:g})",
    )
    verdicts.say(
        last - middle <= GROWTH,
        f"RAM in the second half: {last - middle >> 20:+} MiB (at most {GROWTH >> 20})",
    )


async def attacks(
    server: Server, given: argparse.Namespace, images: list[bytes], verdicts: Verdicts
) -> None:
    """Part 2."""
    alone, beside, lessons = Tally(), Tally(), Tally()
    acknowledged: dict[str, int] = {}
    warm = time.monotonic() + 5
    await asyncio.gather(*(predictor(server, images, warm, Tally()) for _ in range(2)))
    seconds = given.seconds / 2

    def honest(end: float, tally: Tally, taught: Tally) -> list[Coroutine[Any, Any, None]]:
        return [
            *(predictor(server, images, end, tally) for _ in range(given.honest)),
            learner(server, end, taught, acknowledged),
        ]

    end = time.monotonic() + seconds
    await asyncio.gather(*honest(end, alone, Tally()))
    quiet = told("honest predictions alone", alone, seconds)
    words = [sys.executable, "-m", hostile.__name__, str(server.port), str(seconds)]
    words += filter(None, given.attacks.split(","))
    attackers = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    await asyncio.gather(*honest(time.monotonic() + seconds, beside, lessons))
    sent = json.loads((await attackers.communicate())[0])
    busy = told("honest predictions beside attackers", beside, seconds)
    told("honest lessons beside attackers", lessons, seconds)
    peak, failures = server.peak(), await server_errors(server)
    print(f"attackers sent {sent}", flush=True)
    strange = (beside.statuses + lessons.statuses).keys() - {"200", "429"}
    verdicts.say(not strange, f"honest clients saw, besides 200 and 429: {sorted(strange) or 'no'}")
    verdicts.say(
        busy <= RATIO * quiet,
        f"p99 beside attackers over p99 alone: {busy / quiet:.2f} (at most {RATIO:g})",
    )
    verdicts.say(
        peak <= DOCUMENTED,
        f"peak RAM of the server: {peak >> 20} MiB, {peak / DOCUMENTED:.2f} times what is "
        f"documented ({DOCUMENTED >> 20} MiB)",
    )
    verdicts.say(not failures, f"answers of 5xx to anybody, attackers too: {failures}")


async def server_errors(server: Server) -> int:
    """Number of 5xx responses to any client, from the server's metrics."""
    _, text = await Connection(server).get("/metrics")
    counts = re.findall(rb'request_seconds_count{[^}]*status="5\d\d"} ([\d.]+)', text)
    return round(sum(map(float, counts)))


async def full_disk(
    server: Server, given: argparse.Namespace, images: list[bytes], verdicts: Verdicts
) -> None:
    """Part 3."""
    seconds = min(20.0, given.seconds / 3)
    for name, size, allowed in (
        ("with room", -1, {"200", "429"}),
        ("with a full disk", 4096, {"200", "429", "503"}),
        ("with room again", -1, {"200", "429"}),
    ):
        server.limit_files(size)
        predictions, lessons = Tally(), Tally()
        end = time.monotonic() + seconds
        await asyncio.gather(
            *(predictor(server, images, end, predictions) for _ in range(given.honest)),
            learner(server, end, lessons, {}),
        )
        fine = not predictions.statuses.keys() - {"200", "429"}
        verdicts.say(fine, f"predictions {name}: {dict(predictions.statuses)}")
        fine = not lessons.statuses.keys() - allowed and (size > 0 or lessons.statuses["200"] > 0)
        verdicts.say(fine, f"lessons {name}: {dict(lessons.statuses)}")


def kills(memory: Path, rounds: int, verdicts: Verdicts) -> None:
    """Part 4."""
    acknowledged: dict[str, int] = {}
    for number in range(rounds):
        server = Server(memory)

        async def teach(server: Server = server, number: int = number) -> None:
            end = time.monotonic() + 60
            tasks = [
                asyncio.create_task(learner(server, end, Tally(), acknowledged)) for _ in range(4)
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
    verdicts.say(
        not missing and not twice,
        f"killed {rounds} times: {len(acknowledged)} acknowledged, {missing} missing, "
        f"{twice} stored twice, {more} stored whose answer the kill cut off",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--predictors", type=int, default=50)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--honest", type=int, default=4, help="predictors beside attackers")
    parser.add_argument("--attacks", default="", help="some of benchmarks.hostile, with commas")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    given = parser.parse_args()
    chosen = given.parts.split(",")
    images, verdicts = files(16), Verdicts()
    parts = {"load": load, "attacks": attacks, "disk": full_disk}
    with tempfile.TemporaryDirectory() as folder:
        for name, part in parts.items():
            if name not in chosen:
                continue
            server = Server(Path(folder) / name)
            try:
                asyncio.run(part(server, given, images, verdicts))
            finally:
                with suppress(subprocess.TimeoutExpired):
                    server.stop()
                server.process.kill()
        if "kills" in chosen:
            kills(Path(folder) / "kills", given.kills, verdicts)
    verdicts.end()


if __name__ == "__main__":
    main()
