"""Normalisation and validation of label texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from anytimecl.errors import LabelError

NONE_OF_THESE = "none of these"

# Soft hyphen, zero-width space, marks of direction, word joiner, byte order mark. Not the joiners
# within emoji and Persian words, which change what is shown.
UNSEEN = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\u2060\ufeff"))

LONGEST = 200  # characters; text encoders silently truncate at 64 or 77 tokens
_SHOWN = 60  # characters of an invalid value that an error repeats


def clean_label(text: str, position: int | None = None) -> str:
    """Normalise a label: NFC, trimmed, each run of white space one space.

    `position` is its index in a list, for the error message.

    >>> clean_label("  tabby \\t cat ")
    'tabby cat'
    >>> clean_label("")
    Traceback (most recent call last):
    anytimecl.errors.LabelError: The label is empty: ''.
    """
    if not isinstance(text, str):
        kind = type(text).__name__
        raise LabelError(f"{_which(position)} is not text but {kind}: {_show(text)}.")
    label = " ".join(unicodedata.normalize("NFC", text).split())
    if not label:
        raise LabelError(f"{_which(position)} is empty: {_show(text)}.")
    # Cc: control characters, Cs: lone surrogates. Neither can be shown, and the second cannot even
    # be stored as UTF-8. White space controls such as the tab have become blanks above.
    kinds = {unicodedata.category(character) for character in label}
    if "Cs" in kinds:  # of a folder's name in another encoding
        raise LabelError(f"{_which(position)} has bytes that are not UTF-8: {_show(text)}.")
    if "Cc" in kinds:
        raise LabelError(f"{_which(position)} has control characters: {_show(text)}.")
    if len(label) > LONGEST:
        raise LabelError(
            f"{_which(position)} has {len(label)} characters, and {LONGEST} is the most: "
            f"{_show(text)}."
        )
    return label


def visible(label: str) -> str:
    """A label without the characters that cannot be seen, to compare it with others.

    `clean_label` keeps them: a memory may hold a label that has some.

    >>> visible("\ufeffcat\u200b")
    'cat'
    """
    return " ".join(label.translate(UNSEEN).split())


def clean_labels(labels: Iterable[str], limit: int = 1_000_000) -> list[str]:
    """Normalise labels and drop duplicates, keeping the order.

    >>> clean_labels(["dog", " cat", "dog "])
    ['dog', 'cat']
    """
    if isinstance(labels, (str, bytes)):
        raise LabelError(
            f"Labels come as a list of texts, not as one text: write [{_show(labels)}] "
            f"instead of {_show(labels)}."
        )
    try:
        if getattr(labels, "ndim", 1) != 1:  # iterating over a table gives its columns
            raise TypeError
        texts = iter(labels)
    except TypeError:
        raise LabelError(
            f"Labels come as a list of texts, not as {type(labels).__name__}: {_show(labels)}."
        ) from None
    cleaned: dict[str, None] = {}  # an ordered set
    for position, text in enumerate(texts):
        cleaned[clean_label(text, position)] = None
        if len(cleaned) > limit:
            raise LabelError(f"There are more than {limit:,} labels; give at most that many.")
    if not cleaned:
        raise LabelError("There are no labels; give at least one.")
    return list(cleaned)


def _which(position: int | None) -> str:
    return "The label" if position is None else f"The label at position {position}"


def _show(value: object) -> str:
    if isinstance(value, (str, bytes)):
        value = value[: _SHOWN + 1]  # a repr of a gigabyte is a gigabyte
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def askable(labels: Iterable[str]) -> list[str]:
    """`clean_labels` for candidate labels: refuses the reserved "none of these"."""
    cleaned = clean_labels(labels)
    for label in cleaned:
        if label.casefold() == NONE_OF_THESE:
            raise LabelError(
                f"{label!r} is weighed beside any labels, and is none itself: leave it out. "
                "`threshold` says how sure of it an answer must be."
            )
    return cleaned


def teachable(label: str) -> str:
    """`clean_label` for a label to learn: refuses the reserved "none of these", and blanks."""
    cleaned = clean_label(label)
    if not visible(cleaned):
        raise LabelError(f"The label has nothing that can be seen: {_show(label)}.")
    if cleaned.casefold() == NONE_OF_THESE:
        raise LabelError(
            f"{cleaned!r} is what an image of no known label is answered with, and cannot be "
            "taught: give what the image shows a name of its own."
        )
    return cleaned
