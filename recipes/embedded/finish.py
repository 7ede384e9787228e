"""Make what the package carries of trained weights, with what validation said.

    python -m recipes.embedded.finish INPUTS VALIDATION EVERYTHING

Both are files that `recipes.embedded.train` wrote, of the same settings. The one with names held
out says how far to trust the table of known names and how sure to be; the other is shipped. Writes
`text.safetensors` into the package, and `report.json` and `taught.txt` beside this file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded import fetch, text
from anytimecl.backbone.embedded.encoder import NameEncoder
from anytimecl.backbone.embedded.wordnet import Nouns
from recipes.embedded.encoder import load_weights
from recipes.embedded.inputs import Inputs
from recipes.embedded.pack import HELD_OUT, RIDGE
from recipes.embedded.targets import LEFT_OUT, WHEEL
from recipes.embedded.validate import fit_scale, validate


def changes(inputs: Path, trained: Path) -> dict[str, Tensor]:
    """The tuned weights, and the map of the wheel's names, as `text.safetensors` has them."""
    raw = np.load(trained)
    start = load_weights(inputs)
    tuned = {}
    for name in (n for n in raw.files if not n.endswith(".scale")):
        value = torch.from_numpy(raw[name]).float()
        if name + ".scale" in raw.files:
            value = value * torch.from_numpy(raw[name + ".scale"]).unsqueeze(1)
        tuned[name] = value + start[name] if name in start else value
    return text.difference(tuned, original_weights())


def original_weights() -> dict[str, Tensor]:
    """MiniLM's, from its wheel."""
    wheel = fetch.catalogue()[1][text.WHEELS["encoder"]].file
    with zipfile.ZipFile(embedded.wheel_folder() / wheel) as opened:
        return text.read_encoder(opened)[1]


def text_side(inputs: Path, small: dict[str, Tensor], nouns: Nouns) -> text.EmbeddedText:
    """The encoder alone, from what the package would carry."""
    weights = text.apply_difference(original_weights(), small)
    encoder = NameEncoder.of(json.loads((inputs / "minilm.json").read_text()), weights)
    tokenizer = Tokenizer.from_file(str(inputs / "tokenizer.json"))
    return text.EmbeddedText(encoder, tokenizer, nouns, None, 0.0)


def main(folder: Path, validation: Path, everything: Path) -> None:
    small = changes(folder, validation)
    inputs = Inputs(folder, "cpu", classes=HELD_OUT, whole_families=False, ridge=RIDGE)
    full, bare = (text_side(folder, small, nouns) for nouns in (Nouns.packed(), Nouns(b"")))
    own = full(inputs.first)
    report = validate(own, bare(inputs.first), full, inputs)
    report |= fit_scale(own, inputs, report["trust"])
    # Label sets have names of the table and others: half-way between what is best for each.
    report["logit_scale"] = (report["scale_any"] + report["scale_known"]) / 2
    Path(__file__).with_name("report.json").write_text(json.dumps(report, indent=2) + "\n")
    write_taught(inputs)
    print(json.dumps(report, indent=2))
    shipped = changes(folder, everything)
    facts = {name: report[name] for name in ("logit_scale", "trust")}
    out = Path(text.__file__).with_name(text.TUNED)
    save_file(shipped, out, {"facts": json.dumps(facts)})
    print(f"{out.name}: {out.stat().st_size / 1e6:.2f} MB")


def write_taught(inputs: Inputs) -> None:
    """Digests of all names that training had, but for those of the wheel, which all have."""
    names = {s for names in inputs.synonyms for s in names}
    for source, found in inputs.sources.items():
        if source not in (WHEEL, *LEFT_OUT):
            names |= set(found)
    lines = sorted(digest(name) for name in names)
    Path(__file__).with_name("taught.txt").write_text("\n".join(lines) + "\n")


def digest(name: str) -> str:
    """Enough of one to tell whether a name was taught, and not to list what was."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
