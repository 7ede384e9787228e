"""Zero-shot accuracy and calibration of the embedded model, nothing learned.

    python -m benchmarks.zero_shot DATA [data set ...]

Every data set in DATA with a test split, with and without the table of known names; separately,
images of labels with names that the text encoder was trained on, and of all others. Also the pets
with German labels. Images are those of the lab, from its cache.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded.text import EmbeddedText, plain_name
from anytimecl.images import iter_images
from anytimecl_lab.metrics import calibration_error
from anytimecl_lab.recipe import Recipe
from anytimecl_lab.studio import Studio

TAUGHT = Path(__file__).parents[1] / "recipes/embedded/taught.txt"  # digests, written by the recipe
GERMAN = Path(__file__).with_name("pets_german.json")

# Published zero-shot accuracy of CLIP ViT-B/16 with prompt ensembles, on the full sets.
CLIP = {
    "cifar100": "68.7",
    "caltech101": "89.3",
    "pets": "88.9",
    "food101": "89.2",
    "flowers102": "70.4",
}


@torch.no_grad()
def main(data: Path, wanted: list[str]) -> None:
    names = [
        archive.stem
        for archive in sorted(data.glob("*.zip"))
        if (not wanted or archive.stem in wanted)
        and any(ref.split == "test" for ref in iter_images(archive))
    ]
    recipe = Recipe("zero_shot", "", "data-incremental", (), (), novel=tuple(names))
    studio = Studio(recipe, data)
    whole = EmbeddedText.load(embedded.folder())
    alone = EmbeddedText.load(embedded.folder(), look_up=False)
    digests = set(TAUGHT.read_text().split())
    assert whole.known is not None
    table = Table("data set", "classes", "accuracy", "ECE", "encoder alone", "CLIP ViT-B/16")
    for column in ("taught names", "others"):
        table.add_column(column)
    for name in names:
        labels = studio.sets[name].names
        target = torch.tensor([labels.index(label) for label in studio.test[name].labels])
        images = studio.asked_vectors(name)
        plain = [plain_name(label) for label in labels]
        known = torch.tensor([digest(n) in digests or n in whole.known.row for n in plain])
        vectors = studio.backbone.embed_labels(labels)
        scale = studio.backbone.spec.logit_scale
        apart = (images @ alone(labels).T).argmax(1) == target
        table.add_row(*row(name, scale * images @ vectors.T, target, apart, known))
        if name == "pets":
            german = json.loads(GERMAN.read_text(encoding="utf-8"))
            asked = [german[n] for n in plain]
            apart = (images @ alone(asked).T).argmax(1) == target
            vectors = studio.backbone.embed_labels(asked)
            table.add_row(*row("... in German", scale * images @ vectors.T, target, apart, known))
    Console(width=110).print(table)


def row(name: str, logits: Tensor, target: Tensor, apart: Tensor, known: Tensor) -> list[str]:
    """A data set's row in the table."""
    best, answer = logits.softmax(1).max(1)
    right = answer == target
    taught = known[target]
    return [
        name,
        str(logits.shape[1]),
        percent(right),
        f"{calibration_error(best.tolist(), right.tolist()):.3f}",
        percent(apart),
        CLIP.get(name, "-"),
        f"{percent(right[taught])} ({int(known.sum())})",
        f"{percent(right[~taught])} ({int((~known).sum())})",
    ]


def percent(right: Tensor) -> str:
    return f"{100 * right.double().mean():.1f}" if len(right) else "-"


def digest(name: str) -> str:
    """Digest of a name, as in the list that `recipes.embedded.finish` writes."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
