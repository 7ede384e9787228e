"""Zero-shot accuracy and calibration of the embedded model, nothing learned.

    python -m benchmarks.zero_shot DATA [data set ...]

Every data set in DATA with a test split, with the table of known names and without it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.features import Features, features
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from anytimecl.backbone import Backbone, embedded, load
from anytimecl.backbone.embedded.text import EmbeddedText
from anytimecl.images import iter_images
from anytimecl.tail import embed

# Published zero-shot accuracy of CLIP ViT-B/16 with prompt ensembles, on the full sets.
CLIP = {
    "cifar100": "68.7",
    "caltech101": "89.3",
    "pets": "88.9",
    "food101": "89.2",
    "flowers102": "70.4",
}


def calibration_error(p: NDArray[np.float32], y: NDArray[np.int64], bins: int = 15) -> float:
    """Expected calibration error of the top label, equal-width bins."""
    confidence, right = p.max(1), p.argmax(1) == y
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(right[place == b].sum() - confidence[place == b].sum()) for b in range(bins)]
    return float(sum(gaps) / len(y))


@torch.no_grad()
def image_vectors(backbone: Backbone, given: Features) -> torch.Tensor:
    """Unit vectors [image, dim] of the original model."""
    parts = [
        embed(backbone.tail, backbone.spec.tail, torch.from_numpy(given.tokens[i : i + 64]).float())
        for i in range(0, len(given.tokens), 64)
    ]
    return F.normalize(torch.cat(parts), dim=-1)


def main(data: Path, wanted: list[str]) -> None:
    backbone = load("embedded")
    alone = EmbeddedText.load(embedded.folder(), look_up=False)
    table = Table("data set", "classes", "accuracy", "ECE", "encoder alone", "CLIP ViT-B/16")
    for archive in sorted(data.glob("*.zip")):
        if wanted and archive.stem not in wanted:
            continue
        if not any(ref.split == "test" for ref in iter_images(archive)):
            continue
        given = features(archive, "test", backbone)
        images = image_vectors(backbone, given)
        logits = backbone.spec.logit_scale * images @ backbone.embed_labels(given.names).T
        plain = images @ alone(given.names).T
        table.add_row(
            archive.stem,
            str(len(given.names)),
            f"{100 * (logits.argmax(1).numpy() == given.targets).mean():.1f}",
            f"{calibration_error(logits.softmax(1).numpy(), given.targets):.3f}",
            f"{100 * (plain.argmax(1).numpy() == given.targets).mean():.1f}",
            CLIP.get(archive.stem, "-"),
        )
    Console(width=90).print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
