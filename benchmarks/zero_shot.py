"""Zero-shot accuracy and calibration of the embedded model, nothing learned.

    python -m benchmarks.zero_shot DATA [data set ...]

Every data set in DATA with a test split, with the table of known names and without it; images are
those of the lab, from its cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded.text import EmbeddedText
from anytimecl.images import iter_images
from anytimecl_lab.metrics import calibration_error
from anytimecl_lab.recipe import Recipe
from anytimecl_lab.studio import Studio

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
    alone = EmbeddedText.load(embedded.folder(), look_up=False)
    table = Table("data set", "classes", "accuracy", "ECE", "encoder alone", "CLIP ViT-B/16")
    for name in names:
        labels = studio.sets[name].names
        target = torch.tensor([labels.index(label) for label in studio.test[name].labels])
        images = studio.asked_vectors(name)
        logits = studio.backbone.spec.logit_scale * images @ studio.backbone.embed_labels(labels).T
        best, answer = logits.softmax(1).max(1)
        right = answer == target
        plain = (images @ alone(labels).T).argmax(1) == target
        table.add_row(
            name,
            str(len(labels)),
            f"{100 * right.double().mean():.1f}",
            f"{calibration_error(best.tolist(), right.tolist()):.3f}",
            f"{100 * plain.double().mean():.1f}",
            CLIP.get(name, "-"),
        )
    Console(width=90).print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
