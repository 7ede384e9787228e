"""Cut the table of nouns that the package carries from WordNet 3.0's own files.

    python -m recipes.embedded.wordnet /usr/share/wordnet

The folder is what Debian's `wordnet-base` installs. Writes `wordnet.txt.xz`, which
`anytimecl.backbone.embedded.wordnet` reads: a line a noun, sorted, what it is called, a tab, and
what it is.
"""

from __future__ import annotations

import lzma
import re
import sys
from pathlib import Path
from typing import NamedTuple

from anytimecl.backbone.embedded import wordnet
from anytimecl.backbone.embedded.text import plain_name

# Nouns of these files can be seen; the later ones yield to the earlier by so many senses.
KINDS = {
    "05": 0.0,  # animal
    "20": 0.0,  # plant
    "13": 0.0,  # food
    "06": 0.9,  # artefact
    "08": 0.9,  # body
    "17": 0.9,  # natural object
    "27": 1.9,  # substance
    "19": 1.9,  # phenomenon
    "25": 1.9,  # shape
    "04": 2.9,  # act
    "15": 2.9,  # location
    "14": 2.9,  # group
    "10": 2.9,  # communication
    "18": 3.9,  # person
}
TOO_GENERAL = frozenset(
    (
        "entity, physical entity, object, whole, artifact, living thing, organism, thing, matter, "
        "substance, causal agent, abstraction, animal, instrumentality, unit, person, plant part, "
        "vascular plant, natural object, chordate, vertebrate, placental, act, event, way, plant, "
        "activity, psychological feature, location, region, group, relation, attribute, part, "
        "body part, plant organ, solid, device, food, foodstuff, nutriment, mammal, angiosperm"
    ).split(", ")
)
WORDS = 18  # of a gloss
CHAIN = 2  # more general nouns that are named
SYNONYMS = 2


class Synset(NamedTuple):
    kind: str
    lemmas: list[str]
    parent: str | None
    instance: bool
    gloss: str


def read(folder: Path) -> dict[str, Synset]:
    """Nouns by their place in the file."""
    found = {}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue
        plain, _, gloss = line.partition(" | ")
        parts = plain.split()
        count = int(parts[3], 16)
        lemmas = [word.replace("_", " ") for word in parts[4 : 4 + 2 * count : 2]]
        pointers = parts[5 + 2 * count :]
        above = [pointers[i + 1] for i in range(0, len(pointers), 4) if pointers[i] == "@"]
        instance = any(pointers[i] == "@i" for i in range(0, len(pointers), 4))
        found[parts[0]] = Synset(
            parts[1], lemmas, above[0] if above else None, instance, short(gloss)
        )
    return found


def short(gloss: str) -> str:
    """Without its examples, and no longer than it tells anything."""
    gloss = re.split(r'[;:]? ?"', gloss)[0]
    return " ".join(re.sub(r"\s+", " ", gloss).strip(" ;:").split()[:WORDS])


def context(synset: Synset, every: dict[str, Synset], lemma: str) -> str:
    """Synonyms, what it is a kind of, and the gloss."""
    others = [w.lower() for w in synset.lemmas if plain_name(w) != plain_name(lemma)]
    chain: list[str] = []
    parent = synset.parent
    while parent is not None and len(chain) < CHAIN:
        above = every[parent]
        if above.lemmas[0] not in TOO_GENERAL:
            chain.append(above.lemmas[0].lower())
        parent = above.parent
    return ", ".join([*others[:SYNONYMS], *chain]) + ": " + synset.gloss.lower()


def table(folder: Path) -> dict[str, str]:
    """Plain noun -> what it is, by the likeliest sense that can be seen; sorted as bytes are."""
    every = read(folder)
    best: dict[str, tuple[float, str]] = {}
    for line in (folder / "index.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue
        parts = line.split()
        lemma, count = parts[0].replace("_", " "), int(parts[2])
        name = plain_name(lemma)
        if name.startswith("genus ") or not any(c.isalpha() for c in name):
            continue
        for rank, offset in enumerate(parts[-count:]):
            synset = every[offset]
            if synset.kind not in KINDS or synset.instance:
                continue
            score = rank + KINDS[synset.kind]
            if name not in best or score < best[name][0]:
                best[name] = score, context(synset, every, lemma)
    for name, said in extra_glosses().items():
        best[name] = 0.0, said
    lines = sorted(f"{name}\t{said}".encode() for name, (_, said) in best.items())
    return dict(line.decode().split("\t") for line in lines)


def extra_glosses() -> dict[str, str]:
    """Names that WordNet lacks, as this project explains them; breeds also as `bengal cat`."""
    lines = Path(__file__).with_name("glosses.txt").read_text(encoding="utf-8").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith("#"):
            continue
        name, said = line.split(" | ")
        found[plain_name(name)] = said
        for kind in ("cat", "dog"):
            if f", {kind}:" in said and not name.endswith(kind):
                found[plain_name(f"{name} {kind}")] = said
    return found


def main(folder: Path) -> None:
    lines = [f"{name}\t{said}" for name, said in table(folder).items()]
    out = Path(wordnet.__file__).with_name(wordnet.PACKED)
    packed = lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    out.write_bytes(packed)
    print(f"{out.name}: {len(lines):,} nouns, {len(packed) / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
