"""A process that works on a memory until it is killed, and says what was acknowledged.

    python -m tests.memory.crash_worker FOLDER SEED DURABILITY

Each line it prints is one JSON list: ["put", id, number], ["forget", [id, ...]] before and
["forgot", [id, ...]] after, ["try", number] before the first attempt to store a number.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from tests.memory.checks import record

from anytimecl.memory import Row, compact, open_memory


def say(*words: object) -> None:
    os.write(1, f"{json.dumps(words)}\n".encode())  # at once: what is buffered dies with us


def main(folder: Path, seed: int, durability: str) -> None:
    rng = random.Random(seed)
    with open_memory(folder, create={}, durability=durability, cache_bytes=1 << 20) as memory:  # type: ignore[arg-type]
        ids = [example for example, _ in memory.ids()]
        number = seed * 1_000_000
        say("ready")
        while True:
            chance = rng.random()
            if chance < 0.9:
                numbers = range(number, number + (1 if chance < 0.8 else 7))
                number = numbers.stop
                say("try", *numbers)
                rows = [Row(f"label {n % 7}", contents(n), [f"{n % 3}"], f"{n}") for n in numbers]
                for example, n in zip(memory.append_many(rows), numbers, strict=True):
                    say("put", example, n)
                    ids.append(example)
            elif chance < 0.97:
                gone = [ids.pop(rng.randrange(len(ids))) for _ in range(min(4, len(ids)))]
                say("forget", gone)
                memory.forget(gone)
                say("forgot", gone)
            elif chance < 0.98:
                compact(memory)
            else:
                memory.record_event("consolidate", {"at": number})
            memory.read(rng.sample(ids, min(5, len(ids))))


def contents(number: int) -> bytes:
    """What is stored for a number, of any size from nothing to several pages."""
    return record(number, number * 7919 % 9000)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
