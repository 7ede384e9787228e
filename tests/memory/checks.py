"""What the tests of the memory share."""

from __future__ import annotations

from pathlib import Path

from anytimecl.memory import Store, open_memory, verify
from anytimecl.memory.database import FILE

PAGE = 4096


def filled(folder: Path, count: int, size: int = 4400, labels: int = 5) -> list[bytes]:
    """A closed memory whose example n is under label n % labels; returns its records."""
    records = [record(n, size) for n in range(1, count + 1)]
    with open_memory(folder, create={"made": "here"}) as memory:
        memory.append_many((f"label {n % labels}", data) for n, data in enumerate(records, 1))
    return records


def record(number: int, size: int) -> bytes:
    """Bytes that tell from which example and from which place they come."""
    return b"".join(b"<%08d:%08d>" % (number, at) for at in range(size // 19 + 1))[:size]


def on_disk(folder: Path) -> bytes:
    """Every byte of the memory's files."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def page_of(folder: Path, content: bytes) -> int:
    """The number of the database page that holds `content`, counted from 0."""
    at = (folder / FILE).read_bytes().find(content)
    assert at >= 0, "the content is not on one page"
    return at // PAGE


def overwrite(folder: Path, at: int, data: bytes) -> None:
    """Damage the database file."""
    with (folder / FILE).open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(folder: Path, at: int) -> None:
    """Damage one bit of the database file."""
    with (folder / FILE).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def assert_sound(memory: Store) -> None:
    """Nothing is wrong with the memory."""
    report = verify(memory)
    assert report.ok, str(report)
