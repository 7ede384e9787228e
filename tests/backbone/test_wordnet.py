"""What names mean, and German ones in English."""

from __future__ import annotations

import pytest

from anytimecl.backbone.embedded import german
from anytimecl.backbone.embedded.wordnet import Nouns, candidates

LINES = {"bee": "insect", "bee balm": "herb", "orchid": "flower", "öl": "oil", "zebra": "equine"}


@pytest.fixture(scope="module")
def nouns() -> Nouns:
    return Nouns(b"\n".join(sorted(f"{k}\t{v}".encode() for k, v in LINES.items())))


def test_every_noun_is_found_and_no_other(nouns: Nouns) -> None:
    for noun, said in LINES.items():
        assert nouns.exactly(noun) == said
    for other in ("", "a", "be", "bee b", "orchids", "zz", "\t"):
        assert nouns.exactly(other) is None
    assert Nouns(b"").exactly("bee") is None


def test_the_whole_table_agrees_with_a_dictionary() -> None:
    packed = Nouns.packed()
    lines = dict(line.split("\t") for line in packed.text.decode().split("\n"))
    assert len(lines) > 80_000
    for noun in [*lines][::997]:
        assert packed.exactly(noun) == lines[noun]


def test_a_name_has_the_context_of_its_head(nouns: Nouns) -> None:
    assert nouns.context("orchid") == "flower"
    assert nouns.context("pocket orchids") == "orchid, flower"
    assert nouns.context("a photo of a zebra.") == "zebra, equine"
    assert nouns.context("bee of the orchid") == "bee, insect"
    assert nouns.context("xyzzy") == ""


@pytest.mark.parametrize("name", ["", " ", "()", "...", "of", "a", "ies", "s", "🙂", "a photo of "])
def test_any_name_has_candidates(nouns: Nouns, name: str) -> None:
    assert name in list(candidates(name))
    assert isinstance(nouns.context(name), str)


@pytest.mark.parametrize(
    ("name", "english"),
    [
        ("englische bulldogge", "english bulldog"),
        ("rote rosen", "red rose"),
        ("feuerwehrauto", "fire engine"),
        ("bengalkatze", "bengal cat"),
        ("golden retriever", "golden retriever"),
        ("xyzzy", "xyzzy"),
        ("", ""),
    ],
)
def test_german_words_are_told_in_english(name: str, english: str) -> None:
    known = {"golden", "retriever", "golden retriever", "bengal"}
    assert german.in_english(name, known.__contains__) == english
