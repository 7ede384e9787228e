"""Every speed figure of the documentation, one after another: `make bench`."""

from __future__ import annotations

from benchmarks import encode, learn, memory, step


def main() -> None:
    for title, part in (
        ("encoding, against the source model alone", encode),
        ("the online step, against a plain full block", step),
        ("learning, against encoding; a million examples, against a thousand", learn),
        ("the memory", memory),
    ):
        print(f"\n== {title}", flush=True)
        part.main()


if __name__ == "__main__":
    main()
