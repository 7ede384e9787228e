"""Everything that training reads, worked out beforehand: it then takes seconds on a GPU.

    python -m recipes.embedded.pack INPUTS

INPUTS is what `prepare` wrote; `validation.npz`, `families.npz` and `everything.npz` are written
beside it, each with its own names held out, and `texts.npz`, which they share.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recipes.embedded.encoder import NameEncoder, load_weights
from recipes.embedded.inputs import Inputs
from recipes.embedded.pieces import Pieces
from recipes.embedded.reader import TEMPLATES, Reader
from recipes.embedded.targets import in_bytes

RIDGE = 0.3
HELD_OUT = 150
SPLITS = {"everything": (0, False), "validation": (HELD_OUT, False), "families": (HELD_OUT, True)}


def texts(reader: Reader, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Every name in every template, bare and with its context."""
    found: dict[str, NDArray[Any]] = {}
    for kind in ("bare", "full"):
        every = [reader(names, context=kind == "full", template=t) for t in TEMPLATES]
        found[kind] = np.stack([p.ids.numpy() for p in every]).astype(np.uint16)
        lengths = [p.name.sum(1, keepdim=True) for p in every]
        found[kind + "_length"] = np.stack([n.numpy() for n in lengths]).astype(np.uint8)
    return found


@torch.no_grad()
def pooled(folder: Path, pieces: Pieces) -> torch.Tensor:
    """What the untouched encoder makes of texts [text, 2 width]."""
    encoder = NameEncoder(load_weights(folder), "cpu")
    cuts = [pieces.at(slice(i, i + 256)) for i in range(0, len(pieces.ids), 256)]
    return torch.cat([encoder.pooled(cut) for cut in cuts])


def first_head(x: torch.Tensor, weights: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The best head for the untouched encoder [2 width + 1, DIM], by ridge regression."""
    x = torch.cat([x, torch.ones(len(x), 1)], 1)
    weighted = x * weights.unsqueeze(1)
    return torch.linalg.solve(weighted.T @ x + torch.eye(x.shape[1]), weighted.T @ targets)


def main(folder: Path, wanted: Sequence[str]) -> None:
    place: dict[str, int] = {}
    read: torch.Tensor | None = None
    for split in wanted or SPLITS:
        classes, families = SPLITS[split]
        inputs = Inputs(folder, "cpu", classes=classes, whole_families=families, ridge=RIDGE)
        synonyms = [s for names in inputs.synonyms for s in names]
        if read is None:  # of everything, first
            every = list(dict.fromkeys([*inputs.names.texts, *synonyms]))
            place = {name: row for row, name in enumerate(every)}
            reader = Reader(folder, "cpu", inputs.said)
            np.savez_compressed(folder / "texts.npz", **texts(reader, every))  # type: ignore[arg-type]
            read = pooled(folder, reader(every))
        rows = torch.tensor([place[name] for name in inputs.names.texts])
        head = first_head(read[rows], inputs.names.weights, inputs.names.targets)
        values, scales = in_bytes(inputs.names.targets)
        made = inputs.targets.map
        np.savez_compressed(
            folder / f"{split}.npz",
            rows=rows.numpy(),
            targets=values,
            scales=scales,
            weights=inputs.names.weights.numpy(),
            head=head.half().numpy(),
            held=np.array(inputs.split.classes),
            class_vectors=inputs.class_vectors.half().numpy(),
            synonyms=np.array([place[s] for s in synonyms]),
            counts=np.array([len(names) for names in inputs.synonyms]),
            map_matrix=made.matrix.numpy(),
            map_from=made.start["wheel"].numpy(),
            map_to=made.end["wheel"].numpy(),
        )
        print(split, len(rows), "names")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
