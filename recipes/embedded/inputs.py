"""What `prepare` wrote, on the device; what is held out appears in no training list."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.embedded.splits import Split, hold_out
from recipes.embedded.targets import ABOVE, LEFT_OUT, PLAIN, WHEEL, read_sources, targets


@dataclass
class Names:
    """Names with targets, and how often each is drawn."""

    texts: list[str]
    targets: Tensor  # [name, DIM]
    weights: Tensor  # [name]


def tidy(name: str) -> str:
    """As `anytimecl.backbone.embedded.text.plain_name`, for ImageNet's names."""
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())


class Inputs:
    """Images, names, contexts, and targets that no held-out name had a part in."""

    def __init__(
        self, folder: Path, device: str, *, classes: int, whole_families: bool, ridge: float
    ) -> None:
        found, raw = np.load(folder / "images.npz"), np.load(folder / "names.npz")
        self.images = F.normalize(torch.from_numpy(found["images"]).float(), dim=-1).to(device)
        self.image_class = torch.from_numpy(found["image_class"]).to(device)
        self.synonyms = [[tidy(s) for s in str(c).split(",")] for c in found["class_names"]]
        said = json.loads(lzma.decompress((folder / "contexts.json.xz").read_bytes()))
        self.said: dict[str, str] = said["contexts"]
        sources = read_sources(raw, device)
        self.split: Split = hold_out(
            self.synonyms,
            {s: tuple(names) for s, names in sources.items() if s not in LEFT_OUT},
            self.said,
            frozenset(said["headless"]),
            classes=classes,
            whole_families=whole_families,
        )
        self.sources = sources
        self.held = torch.zeros(len(self.synonyms), dtype=torch.bool, device=device)
        self.held[self.split.classes] = True
        away = self.split.away
        self.targets = targets(sources, away, ridge)
        self.everything = targets(sources, set(), ridge) if away else self.targets
        self.said |= {ABOVE.format(n): s for n, s in self.said.items()}
        true = self.everything.true
        self.first = [next(s for s in names if s in true) for names in self.synonyms]
        self.class_vectors = torch.stack([true[first] for first in self.first])
        self.names = self._names(away)

    def _names(self, away: set[str]) -> Names:
        made = self.targets
        rows: list[tuple[str, Tensor, float]] = [(n, v, 3.0) for n, v in made.true.items()]
        rows += [(n, v, self._weight(n)) for n, v in made.mapped.items()]
        rows += [(n, v, 2.0) for n, v in made.above.items()]
        for number, names in enumerate(self.synonyms):
            vector = self.class_vectors[number]
            rows += [(s, vector, 0.7) for s in names if s not in made.true and s not in away]
        texts, vectors, weights = zip(*rows, strict=True)
        return Names(list(texts), torch.stack(vectors), torch.tensor(weights))

    def _weight(self, name: str) -> float:
        """The wheel's many names are drawn less often than those of data sets."""
        if any(name in f for s, f in self.sources.items() if s not in (WHEEL, *PLAIN)):
            return 2.0
        return 0.6 if len(name) > 2 else 0.2

    def target(self, name: str) -> Tensor:
        """The best that is known of a name, held out or not."""
        for found in (self.everything.true, self.everything.mapped, self.everything.above):
            if name in found:
                return found[name]
        raise KeyError(name)
