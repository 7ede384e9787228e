"""The sizing table of the service: what one machine answers, and what it costs.

    python -m benchmarks.serve [--seconds 20]

A server process with the embedded model, JPEG files of 640 x 480, ten labels. CPU time is the
server's own, which other load on the machine does not affect; rates and latencies depend on the
load. The reference is the trunk alone, in this process: a lower bound for any service.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles

from benchmarks.load import learner, predictor
from benchmarks.service import Server, Tally, files

from anytimecl import backbone
from anytimecl.images import load_image

Work = Callable[[float, Tally], list[Awaitable[None]]]


def cpu(server: Server) -> float:
    """CPU seconds used by the server."""
    words = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def trunk_alone(images: list[bytes]) -> float:
    """CPU milliseconds per image: decode, preprocess, encode."""
    model = backbone.load("embedded")
    model.encode([load_image(images[0])])
    began = time.process_time()
    for image in images:
        model.encode([load_image(image)])
    return 1000 * (time.process_time() - began) / len(images)


def measure(server: Server, name: str, seconds: float, work: Work, alone: float) -> None:
    """Print a row."""

    async def run() -> Tally:
        tally = Tally()
        await asyncio.gather(*work(time.monotonic() + seconds, tally))
        return tally

    before = cpu(server)
    tally = asyncio.run(run())
    spent = 1000 * (cpu(server) - before) / len(tally.seconds)
    cuts = quantiles(tally.seconds, n=100)
    print(
        f"| {name} | {len(tally.seconds) / seconds:.1f} | {1000 * cuts[49]:.0f} | "
        f"{1000 * cuts[98]:.0f} | {spent:.0f} | {spent / alone:.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="for each row")
    given = parser.parse_args()
    images = files(16)
    alone = trunk_alone(images)
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load {load:.1f}; the trunk alone: {alone:.0f} CPU ms an image\n"
    )
    print("| | per second | p50 ms | p99 ms | CPU ms each | times the trunk alone |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        memory = Path(folder) / "memory"
        server = Server(memory)
        try:
            acknowledged: dict[str, int] = {}

            def predictors(count: int) -> Work:
                return lambda end, tally: [
                    predictor(server, images, end, tally) for _ in range(count)
                ]

            def learners(count: int) -> Work:
                return lambda end, tally: [
                    learner(server, end, tally, acknowledged) for _ in range(count)
                ]

            for count in (1, 8, 50):
                name = f"predictions, {count} at a time"
                measure(server, name, given.seconds, predictors(count), alone)
            for count in (1, 4):
                name = f"lessons, {count} at a time"
                measure(server, name, given.seconds, learners(count), alone)
            resident = server.resident()
        finally:
            server.stop()
        disk = sum(file.stat().st_size for file in memory.glob("memory.sqlite3*"))
        checkpoint = sum(file.stat().st_size for file in (memory / "checkpoint").rglob("*"))
    print(
        f"\nRAM {resident >> 20} MiB; {len(acknowledged)} examples on disk take "
        f"{disk / 1024 / max(1, len(acknowledged)):.1f} KiB each, the checkpoint "
        f"{checkpoint >> 20} MiB"
    )


if __name__ == "__main__":
    main()
