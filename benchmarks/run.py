"""Every speed figure of the documentation, one after another: `make bench`.

    python -m benchmarks.run [--only PART[,PART...]] [--PART.OPTION VALUE ...]

Parts: encode, step, learn, predict, memory. What follows a part's name and a dot goes to that part:

    make bench ARGS='--only step,memory --step.rounds 5 --memory.records 10000'
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks import encode, learn, memory, predict, step


class Part(NamedTuple):
    """A benchmark."""

    title: str
    main: Callable[[Sequence[str]], None]


PARTS = {
    "encode": Part("encoding, against the source model alone", encode.main),
    "step": Part("the online step, against a plain full block", step.main),
    "learn": Part("learning, against encoding; a million examples, against a thousand", learn.main),
    "predict": Part(
        "answers, against encoding; consolidation, against a plain full block", predict.main
    ),
    "memory": Part("the memory", memory.main),
}


def shares(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Common options, and options of each part.

    >>> shares(["--only", "step", "--step.rounds", "5", "--step.device", "cpu"])
    (['--only', 'step'], {'step': ['--rounds', '5', '--device', 'cpu']})
    """
    rest: list[str] = []
    own: dict[str, list[str]] = {}
    goes_to = rest
    for word in words:
        if word.startswith("--"):
            part, dot, option = word[2:].partition(".")
            goes_to = own.setdefault(part, []) if dot else rest
            word = f"--{option}" if dot else word
        goes_to.append(word)
    return rest, own


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART[,PART...]")
    rest, own = shares(sys.argv[1:] if words is None else words)
    chosen = parser.parse_args(rest).only.split(",")
    if unknown := ({*chosen} | own.keys()) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}: choose {', '.join(PARTS)}")
    if idle := own.keys() - {*chosen}:
        parser.error(f"--only leaves out {', '.join(sorted(idle))}, which has options")
    for name in chosen:
        print(f"\n== {PARTS[name].title}", flush=True)
        PARTS[name].main(own.get(name, []))


if __name__ == "__main__":
    main()
