"""Word-by-word translation of German labels, since the text encoder knows only English.

`german.txt`, written for this project, has some hundred common words; compounds are split. Words
that are also English are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources

ENDINGS = ("", "e", "er", "es", "en", "em", "n", "s")  # of adjectives and plurals
LINKS = ("", "s", "n", "en", "er", "e")  # between the parts of a compound
SHORTEST = 3  # letters of a compound's part


@cache
def words() -> Mapping[str, str]:
    """German word -> English."""
    text = resources.files(__package__).joinpath("german.txt").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in text.splitlines())


def in_english(name: str, is_english: Callable[[str], bool]) -> str:
    """A plain name with its German words translated.

    >>> in_english("englische bulldogge", lambda word: False)
    'english bulldog'
    >>> in_english("siamkatze", lambda word: False), in_english("waldvogel", lambda word: False)
    ('siamese cat', 'forest bird')
    """
    if is_english(name):
        return name
    if (whole := words().get(name)) is not None:
        return whole
    parts = name.split()
    said = [part if is_english(part) else in_one(part, is_english) for part in parts]
    if all(each is None or each == part for each, part in zip(said, parts, strict=True)):
        return name
    return " ".join(each or part for each, part in zip(said, parts, strict=True))


def in_one(word: str, is_english: Callable[[str], bool]) -> str | None:
    """Translation of a word, inflected or compound; its first part may be a name."""
    if (found := inflected(word)) is not None:
        return found
    for cut in range(len(word) - SHORTEST, SHORTEST - 1, -1):
        if (last := inflected(word[cut:])) is None:
            continue
        first = linked(word[:cut])
        if first is None and cut > SHORTEST and is_english(word[:cut]):
            first = word[:cut]
        if first is not None:
            return f"{first} {last}"
    return None


def inflected(word: str) -> str | None:
    """Translation of an inflected word."""
    return without(word, ENDINGS)


def linked(word: str) -> str | None:
    """Translation of a compound's first part."""
    return without(word, LINKS)


def without(word: str, endings: tuple[str, ...]) -> str | None:
    """Translation of a word without one of these endings."""
    for ending in endings:
        stem = word.removesuffix(ending)
        if word.endswith(ending) and stem in words():
            return words()[stem]
    return None
