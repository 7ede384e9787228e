"""`anytimecl encode` by 1, 2 and more processes or actors, each on one core, beside one of them.

    python -m benchmarks.scale encode [--workers 1,2,4] [--images 384] [--rounds 3] [--ray]

Each round runs every number of workers, in turn, on the same synthetic photographs. The rate is
that from the first finished block to the last, so that it excludes loading models. On a machine
with other load, wall-clock time depends on that load: `CPU` is the CPU time per image with one
worker, divided by that with several.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image

from anytimecl import backbone as backbones
from anytimecl.scale.encoding import running
from anytimecl.scale.encoding.job import EncodingJob, begun, memory_meta
from anytimecl.scale.encoding.sources import Reading
from anytimecl.settings import Settings

BLOCK = 8


class Measured(NamedTuple):
    """Results of one run."""

    rate: float  # images per second, wall-clock
    cpu: float  # CPU seconds per image


def encode(given: argparse.Namespace) -> None:
    """Print a table: workers, images per second, and efficiency relative to linear scaling."""
    workers = [int(one) for one in given.workers.split(",")]
    cores = len(os.sched_getaffinity(0))
    runs: dict[int, list[Measured]] = {count: [] for count in workers}
    with tempfile.TemporaryDirectory() as name:
        photos = _photos(Path(name) / "photos", given.images)
        for turn in range(given.rounds):
            for count in workers:
                to = Path(name) / f"{turn}-{count}"
                runs[count].append(_measured(photos, to, count, on_ray=given.ray))
                print(f"round {turn + 1}, {count} workers: {runs[count][-1]}", flush=True)
    alone = runs[workers[0]]
    print(f"\n{cores} cores, medians of {given.rounds} rounds, ratios taken round by round\n")
    print("| workers | images a second | of linear, wall | CPU ms an image | of linear, CPU |")
    print("|---" * 5 + "|")
    for count, found in runs.items():
        useful = min(count, cores) / min(workers[0], cores)
        wall = [mine.rate / one.rate / useful for mine, one in zip(found, alone, strict=True)]
        cpu = [one.cpu / mine.cpu for mine, one in zip(found, alone, strict=True)]
        rate = statistics.median(one.rate for one in found)
        each = 1000 * statistics.median(one.cpu for one in found)
        print(
            f"| {count} | {rate:.1f} | {statistics.median(wall):.2f} | {each:.1f} "
            f"| {statistics.median(cpu):.2f} |"
        )


def _photos(folder: Path, count: int) -> Path:
    """Synthetic photographs: smooth, 640 x 480, JPEG."""
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        file = folder / f"thing {number % 10}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(coarse).resize((640, 480)).save(file)
    return folder


def _measured(photos: Path, to: Path, workers: int, *, on_ray: bool) -> Measured:
    model = backbones.load("embedded")
    meta = memory_meta(model, Settings())
    del model
    job = begun(EncodingJob(to, str(photos), Reading(), meta, block=BLOCK))
    places = running.missing(job)
    work = (running.on_ray if on_ray else running.in_processes)(job, places, workers)
    times, cpu, images = [], 0.0, 0
    for done in work:
        times.append(time.perf_counter())
        cpu, images = cpu + done.seconds, images + done.images
    # Every worker has finished its first block by then.
    first = min(2 * workers, len(times) // 2)
    return Measured(BLOCK * (len(times) - first - 1) / (times[-1] - times[first]), cpu / images)
