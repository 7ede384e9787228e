"""Measures the prior of a model on labelled images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import PIL.Image
import torch

from anytimecl.backbone import Backbone
from anytimecl.backbone.prior import FEWEST, VIEWS, Prior, measure
from anytimecl.errors import ModelError
from anytimecl.tail import images_of

VIEWED = 1000  # images at most that are also cropped, mirrored and recompressed


@torch.no_grad()
def measure_prior(
    backbone: Backbone,
    images: Sequence[Callable[[], PIL.Image.Image]],
    labels: Sequence[str],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Prior:
    """Mean and covariances of a model's image embeddings; images are loaded one at a time."""
    counts = Counter(labels)
    kept = [i for i, label in enumerate(labels) if counts[label] >= FEWEST]
    if len({labels[i] for i in kept}) < FEWEST:
        raise ModelError(
            f"A prior needs {FEWEST} labels with {FEWEST} images each at least; many are better. "
            "A folder for each label holds its images."
        )
    step = max(5, -(-len(kept) // VIEWED))
    first = kept[::step]
    chosen = set(first)
    order = first + [i for i in kept if i not in chosen]
    done, total = 0, len(order) + len(first) * len(VIEWS)

    def vector(image: PIL.Image.Image) -> torch.Tensor:
        nonlocal done
        found = images_of(backbone.tail, backbone.spec.tail, backbone.encode([image]))[0]
        done += 1
        progress(done, total)
        return found.double().cpu()

    views: list[list[torch.Tensor]] = [[] for _ in VIEWS]
    vectors = []
    for i in order:
        image = images[i]()
        vectors.append(vector(image))
        for changed, found in zip(VIEWS, views, strict=True):
            if i in chosen:
                found.append(vector(changed(image)))
    place = {label: at for at, label in enumerate(dict.fromkeys(labels[i] for i in order))}
    return measure(
        torch.stack(vectors),
        [place[labels[i]] for i in order],
        [torch.stack(found) for found in views],
    )
