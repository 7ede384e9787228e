"""Context of names from WordNet, as input of the text encoder.

The table was extracted from WordNet 3.0 by `recipes/embedded/wordnet.py`; `WORDNET-LICENSE`
is its licence.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

PACKED = "wordnet.txt.xz"  # in the package
TABLE = "wordnet.txt"  # in the assembled model's folder
_PROMPT = re.compile(
    r"^(?:(?:an?|the) )?(?:(?:\w+ )*(?:photo|image|picture|view)s? of )?(?:(?:an?|the) )?"
)
_AFTER = re.compile(r" (?:of|with|in|on|for|from|at|and|a la) ")


class Nouns:
    """Nouns and their contexts, in a sorted text that is searched by bisection."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @classmethod
    def load(cls, folder: Path) -> Nouns:
        """From the assembled model's folder."""
        return cls((folder / TABLE).read_bytes())

    @classmethod
    def packed(cls) -> Nouns:
        """From the package."""
        return cls(lzma.decompress(resources.files(__package__).joinpath(PACKED).read_bytes()))

    def exactly(self, noun: str) -> str | None:
        """The context of exactly this noun, if it is in the table."""
        key, text = noun.encode() + b"\t", self.text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high) // 2
            start = text.rfind(b"\n", low, middle) + 1 or low
            end = text.find(b"\n", middle, high)
            end = high if end < 0 else end
            line = text[start:end]
            if line.startswith(key):
                return line[len(key) :].decode()
            if line < key:
                low = end + 1
            else:
                high = start
        return None

    def context(self, name: str) -> str:
        """Context of a name, else of its head (`great pocket orchid` is an orchid), else ""."""
        for candidate in candidates(name):
            if (said := self.exactly(candidate)) is not None:
                return said if candidate == name else f"{candidate}, {said}"
        return ""


def candidates(name: str) -> Iterator[str]:
    """Nouns to look a plain name up by, the most specific first.

    >>> list(candidates("pocket orchids"))
    ['pocket orchids', 'pocket orchid', 'pocketorchids', 'orchids', 'orchid']
    """
    yield name
    bare = _PROMPT.sub("", re.sub(r"\(.*?\)|[^\w\s'.]", " ", name)).strip(" .") or name
    words = bare.split()
    bare = " ".join(words)
    if bare != name:
        yield bare
    yield from singulars(bare)
    if 1 < len(words) < 4:
        yield "".join(words)
    head = _AFTER.split(bare)[0].split()
    for start in range(len(head) == len(words), len(head)):
        rest = " ".join(head[start:])
        yield rest
        yield from singulars(rest)


def forms(noun: str) -> Iterator[str]:
    """The noun itself, and its possible singulars."""
    yield noun
    yield from singulars(noun)


def singulars(noun: str) -> Iterator[str]:
    """Possible singulars of a noun."""
    if noun.endswith("ies"):
        yield noun[:-3] + "y"
    if noun.endswith("es"):
        yield noun[:-2]
    if noun.endswith("s") and not noun.endswith("ss"):
        yield noun[:-1]


def unpack(out: Path) -> None:
    """Write the table into the model's folder."""
    (out / TABLE).write_bytes(Nouns.packed().text)
