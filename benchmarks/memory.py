"""A memory of a million records: how fast it opens, how fast it is drawn from, how large it is.

    python -m benchmarks.memory [--records 1000000] [--size 4400] [--labels 1000] [--folder DIR]
    python -m benchmarks.memory --layouts

Records are random bytes with sizes that vary by a tenth around `--size`. The reference, in the same
run, is a plain table with one row per record, at a fiftieth of the count: its disk use in
proportion to the payload, and its time to read 31 records by id. An existing memory in `--folder`
is measured as it is; without `--folder` one is filled (about 5 GB) and removed again. Reads hit the
system's page cache, but mostly not the memory's own cache. `--layouts` compares the disk use with
that of one row per record for other page sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from anytimecl.memory import Row, info, open_memory
from anytimecl.memory.database import FILE
from anytimecl.sampling import ClassBalanced

LIMITS = {"open": 3.0, "draw": 1.0, "ram": 150.0, "disk": 1.05}
DRAWS = 2000
BATCH = 31
AT_ONCE = 2000  # records per transaction while filling


def main(words: Sequence[str] | None = None) -> None:
    """Fill, measure in a fresh process, print, and fail if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.memory", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=4400)
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    if chosen.measure:
        print(json.dumps(measure(chosen.measure)))
        return
    if chosen.layouts:
        layouts()
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch) / "memory"
        if not folder.exists():
            fill(folder, chosen.records, chosen.size, chosen.labels)
        code = [sys.executable, "-m", "benchmarks.memory", "--measure", str(folder)]
        found = json.loads(subprocess.run(code, check=True, capture_output=True).stdout)
        plain = reference(Path(scratch) / "plain.sqlite3", chosen.records // 50, chosen.size)
    report(found, plain)


def report(found: dict[str, float], plain: dict[str, float]) -> None:
    """Print the figures beside their limits and the reference."""
    rows = [
        ("open and rebuild the index", "open", "s", found["open"]),
        ("class-balanced draw of 31, read", "draw", "ms", found["draw"]),
        ("resident memory of the index", "ram", "MB", found["ram"]),
        ("disk, times the payload", "disk", "", found["disk"]),
    ]
    print(f"{found['records']:,.0f} records, {found['payload'] / 1e9:.2f} GB of payload")
    for name, key, unit, value in rows:
        print(f"{name:34}{value:9.3f} {unit:3} (at most {LIMITS[key]})")
    print(f"{'of opening, work of the CPU':34}{found['open_cpu']:9.3f} s")
    print(f"{'the draw again, in the hot set':34}{found['hot']:9.3f} ms")
    print(f"{'one append, acknowledged':34}{found['append']:9.3f} ms")
    print(f"{'ids and labels, in order':34}{found['ids']:9.3f} s")
    print("a plain table, one row a record:")
    print(f"{'disk, times the payload':34}{plain['disk']:9.3f}     ", end="")
    print(f"ours / plain {found['disk'] / plain['disk']:.2f}")
    print(f"{'31 records by id':34}{plain['read']:9.3f} ms  ", end="")
    print(f"ours / plain {found['draw'] / plain['read']:.2f}")
    broken = [name for name, key, _, value in rows if value > LIMITS[key]]
    if broken:
        sys.exit(f"Over the limit: {', '.join(broken)}.")


def fill(folder: Path, records: int, size: int, labels: int) -> None:
    """Random records, with few frequent and many rare labels."""
    rng = random.Random(0)
    began = time.perf_counter()
    with open_memory(folder, create={"benchmark": "memory"}) as memory:
        for at in range(0, records, AT_ONCE):
            count = min(AT_ONCE, records - at)
            memory.append_many([_row(rng, size, labels) for _ in range(count)])
    spent = time.perf_counter() - began
    print(f"filled in {spent:.0f} s, {1e6 * spent / records:.0f} µs a record", file=sys.stderr)


def measure(folder: Path) -> dict[str, float]:
    """All figures of the memory, in a fresh process."""
    resident = _resident()
    began, worked = time.perf_counter(), time.process_time()
    memory = open_memory(folder)
    sampler = ClassBalanced()
    for example, label in memory.ids():
        sampler.add(example, label)
    opened, worked = time.perf_counter() - began, time.process_time() - worked
    ram = (_resident() - resident) / 1e6
    began = time.perf_counter()
    for _ in memory.ids():
        pass
    ids = time.perf_counter() - began
    _warm(folder / FILE)
    rng = random.Random(1)
    draw = _median(DRAWS, lambda: memory.read(sampler.draw(BATCH, rng)))
    again = sampler.draw(BATCH, rng)
    hot = _median(DRAWS, lambda: memory.read(again))
    row = _row(rng, 4400, 10)
    numbers = info(memory)
    append = _median(200, lambda: memory.append(*row))
    memory.close()
    return {
        "records": numbers.examples,
        "payload": numbers.payload_bytes,
        "open": opened,
        "open_cpu": worked,
        "ram": ram,
        "ids": ids,
        "draw": draw,
        "hot": hot,
        "append": append,
        "disk": numbers.disk_bytes / numbers.payload_bytes,
    }


def layouts() -> None:
    """Print disk use relative to the payload, by record size and layout."""
    pages = [1024, 4096, 8192, 16384, 32768, 65536]
    print("disk, times the payload; sizes vary by a tenth")
    print("record size   ours  " + "".join(f"{page // 1024:4} KB" for page in pages))
    for size in (2500, 3500, 4400, 6400, 9000):
        with tempfile.TemporaryDirectory() as scratch:
            fill(Path(scratch) / "ours", 10_000, size, 100)
            with open_memory(Path(scratch) / "ours") as memory:
                numbers = info(memory)
            found = [numbers.disk_bytes / numbers.payload_bytes]
            for page in pages:
                path = Path(scratch) / f"{page}"
                found.append(reference(path, 10_000, size, page)["disk"])
        print(f"{size:11}{found[0]:7.3f}  " + "".join(f"{one:7.3f}" for one in found[1:]))


def reference(path: Path, records: int, size: int, page: int = 4096) -> dict[str, float]:
    """One row per record."""
    rng = random.Random(0)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA page_size = {page}")
    db.execute("CREATE TABLE example (id INTEGER PRIMARY KEY, label TEXT, record BLOB)")
    rows = [_row(rng, size, 10) for _ in range(records)]
    db.executemany("INSERT INTO example (label, record) VALUES (?, ?)", [row[:2] for row in rows])
    db.commit()
    payload = sum(len(row.record) for row in rows)

    def read(ids: Sequence[int]) -> list[bytes]:
        one = "SELECT record FROM example WHERE id = ?"
        return [db.execute(one, (example,)).fetchone()[0] for example in ids]

    _warm(path)
    spent = _median(DRAWS, lambda: read(rng.sample(range(1, records + 1), BATCH)))
    db.close()
    return {"disk": path.stat().st_size / payload, "read": spent}


def _row(rng: random.Random, size: int, labels: int) -> Row:
    label = int(labels * rng.random() ** 2)  # the first tenth has a third of the examples
    return Row(f"label {label}", rng.randbytes(rng.randint(size * 9 // 10, size * 11 // 10)))


def _median(times: int, run: Callable[[], object]) -> float:
    """Median in milliseconds."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        spent.append(time.perf_counter() - began)
    return 1000 * statistics.median(spent)


def _warm(path: Path) -> None:
    """Read the file into the system's page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def _resident() -> int:
    """Resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
