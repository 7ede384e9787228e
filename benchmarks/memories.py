"""Honest clients in several memories of one service that is killed again and again.

    python -m benchmarks.memories [--seconds 600] [--clients 20] [--kill-every 60] [--tiny]

Every client alternates predictions and learning in one of three memories, and resends a learn
request under its key if a kill cut off the response. Prints how many acknowledged examples are lost
or stored twice, and the trend of RAM over the second half: linear fits to the usage just before
each kill, and to all measurements of the last process. `--tiny` uses a random model of a few
kilobytes, for slow machines.

Exits with 1 if an acknowledged example is lost or stored twice, if a client sees an error other
than 429, or if RAM before kills grows by more than a hundredth per minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from benchmarks.service import Connection, Server, Verdicts, files, form, noise

from anytimecl.memory import open_memory

NAMES = ("default", "cats", "dogs")
LABELS = [f"label {number}" for number in range(10)]
FLAT = 0.01  # allowed growth of RAM per minute, relative
WARM = 5.0  # seconds after a start that are not part of the fit


@dataclass
class Run:
    """The current server, and the measurements."""

    server: Server
    end: float
    acknowledged: dict[str, dict[str, int]] = field(
        default_factory=lambda: {name: {} for name in NAMES}
    )
    sent: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in NAMES})
    statuses: Counter[str] = field(default_factory=Counter)
    held: list[tuple[float, float]] = field(default_factory=list)  # before each kill: time, MiB
    life: list[tuple[float, float]] = field(default_factory=list)  # of the current server


async def client(run: Run, number: int, images: list[bytes]) -> None:
    """Send one request after another to one memory."""
    memory = NAMES[number % len(NAMES)]
    base, count = f"/v1/memories/{memory}", 0
    ask = form([("labels", label) for label in LABELS], "images", images[number % len(images)])
    while time.monotonic() < run.end:
        key = f"{number}-{count}"
        run.sent[memory].add(key)
        lesson = form([("label", LABELS[count % 10])], "image", noise(100_000 * number + count))
        for path, (body, kind), given in (("predict", ask, ""), ("learn", lesson, key)):
            told = await until_answered(run, f"{base}/{path}", body, kind, given)
            if given and told is not None:
                run.acknowledged[memory][key] = told["id"]
        count += 1


async def until_answered(
    run: Run, path: str, body: bytes, kind: str, key: str
) -> dict[str, int] | None:
    """Retry after a kill and after 429. None if the time is over."""
    while time.monotonic() < run.end:
        connection = Connection(run.server)
        try:
            status, content = await connection.post(path, body, kind, key)
        except (OSError, asyncio.IncompleteReadError):
            run.statuses["cut off"] += 1
            await asyncio.sleep(0.2)
            continue
        finally:
            connection.close()
        run.statuses[str(status)] += 1
        if status == 200:
            return dict(json.loads(content))
        await asyncio.sleep(0.5)
    return None


async def kill(run: Run, memory: Path, words: list[str], every: float) -> None:
    """Kill and restart the server repeatedly; the last one runs to the end."""
    while time.monotonic() + every < run.end:
        began = time.monotonic()
        while time.monotonic() < began + every:
            now = time.monotonic()
            if now > began + WARM:
                run.life.append((now, run.server.resident() / 2**20))
            await asyncio.sleep(0.5)
        run.held.append(run.life[-1])
        run.server.kill()
        run.life = []
        run.server = await asyncio.to_thread(Server, memory, *words)
    while time.monotonic() < run.end:
        run.life.append((time.monotonic(), run.server.resident() / 2**20))
        await asyncio.sleep(0.5)


def slope(seen: list[tuple[float, float]]) -> float:
    """MiB per minute, by least squares."""
    if len(seen) < 2:
        return float("nan")
    times, sizes = np.array(seen).T
    return float(np.polyfit((times - times[0]) / 60, sizes, 1)[0])


def count(folder: Path, acknowledged: dict[str, int], sent: set[str]) -> tuple[int, int, int]:
    """Examples lost, stored twice, and stored although the response was cut off.

    Stored twice: examples in excess of the keys ever sent, and examples with two keys.
    """
    with open_memory(folder, read_only=True) as store:
        lost = sum(store.has_key(key) != example for key, example in acknowledged.items())
        stored = len(store)
    twice = len(acknowledged) - len(set(acknowledged.values())) + max(0, stored - len(sent))
    return lost, twice, stored - len(acknowledged)


async def work(given: argparse.Namespace, folder: Path, words: list[str]) -> Run:
    server = Server(folder / "default", *words)
    run = Run(server, time.monotonic() + given.seconds)
    for name in NAMES[1:]:
        body = json.dumps({"name": name}).encode()
        status, told = await Connection(server).post("/v1/memories", body, "application/json")
        assert status == 201, told
    images = files(16)
    run.end = time.monotonic() + given.seconds
    await asyncio.gather(
        *(client(run, number, images) for number in range(given.clients)),
        kill(run, folder / "default", words, given.kill_every),
    )
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--kill-every", type=float, default=60)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        words = ["--memories", str(folder / "others")]
        if given.tiny:
            from tests.backbone import tiny

            words += ["--model", str(tiny.clip(folder / "model"))]
        run = asyncio.run(work(given, folder, words))
        with suppress(OSError):
            run.server.stop()
        places = {name: folder / "others" / name for name in NAMES[1:]}
        places["default"] = folder / "default"
        found = {
            name: count(places[name], run.acknowledged[name], run.sent[name]) for name in NAMES
        }
    half = [one for one in run.held if one[0] > run.end - given.seconds / 2]
    print(f"{given.clients} clients in {len(NAMES)} memories for {given.seconds:g} s, "
          f"killed {len(run.held)} times; answers {dict(run.statuses)}")  # fmt: skip
    verdicts = Verdicts()
    strange = run.statuses.keys() - {"200", "429", "cut off"}
    verdicts.say(not strange, f"errors but 429 and what kills cut off: {sorted(strange) or 'none'}")
    for name, (lost, twice, more) in found.items():
        known = len(run.acknowledged[name])
        told = f"{name}: {known} acknowledged, {lost} lost, {twice} twice"
        verdicts.say(not lost and not twice, f"{told} ({more} stored whose answer was cut off)")
    last, most = slope(half), FLAT * half[-1][1] if half else float("nan")
    verdicts.say(
        last <= most,
        f"RAM before kills in the second half: {[round(size) for _, size in half]} MiB, slope "
        f"{last:+.2f} MiB a minute (at most {most:.1f}); in the last life "
        f"{slope(run.life):+.2f} MiB a minute",
    )
    verdicts.end()


if __name__ == "__main__":
    main()
