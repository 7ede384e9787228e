"""How long one prediction from the command line takes beside importing what it is made with.

    python -m benchmarks.opening [--rounds 5] [--limit 1.7] [--megabytes 500]

`anytimecl predict IMAGE --labels ...` with the embedded model and cached labels, against `python -c
"import torch, onnxruntime"`: whole processes, alternating, with wall-clock time, CPU time and peak
RAM of each. The ratio is that of the median wall-clock times.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.learn import pictures

LABELS = "cat,dog,a red car"
IMPORTS = [sys.executable, "-c", "import torch, onnxruntime"]


class Run(NamedTuple):
    """Cost of one process."""

    seconds: float
    processor: float  # seconds
    megabytes: float  # at its peak


def run(command: Sequence[str]) -> Run:
    """Run a process to its end; its output is discarded."""
    began = time.perf_counter()
    child = os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed with {os.waitstatus_to_exitcode(status)}.")
    return Run(time.perf_counter() - began, used.ru_utime + used.ru_stime, _megabytes(used))


def _megabytes(used: resource.struct_rusage) -> float:
    unit = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss
    return used.ru_maxrss * unit / 1e6


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.opening", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=1.7)
    parser.add_argument("--megabytes", type=float, default=500)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "photo.jpg"
        pictures(1)[0].save(image)
        program = [sys.executable, "-m", "anytimecl.cli", "predict", str(image)]
        commands = {"imports": IMPORTS, "predict": [*program, "--labels", LABELS]}
        for command in commands.values():
            run(command)  # fills the caches of labels and files
        runs = {name: [run(commands[name])] for name in commands}
        for _ in range(given.rounds - 1):
            for name, command in commands.items():
                runs[name].append(run(command))
    middle = {name: Run(*map(median, zip(*found, strict=True))) for name, found in runs.items()}
    for name, one in middle.items():
        took = f"{one.seconds:.2f} s, {one.processor:.2f} s of processors"
        print(f"{name:8} {took}, {one.megabytes:.0f} MB (medians of {given.rounds})")
    imports, predict = middle["imports"], middle["predict"]
    ratio, on_processors = predict.seconds / imports.seconds, predict.processor / imports.processor
    print(f"ratio    {ratio:.2f} (at most {given.limit}); of processors {on_processors:.2f}")
    if ratio > given.limit or predict.megabytes > given.megabytes:
        sys.exit(f"Over {given.limit} times, or over {given.megabytes:.0f} MB.")


if __name__ == "__main__":
    main()
