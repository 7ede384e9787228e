"""How well names that were held out are told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.embedded.inputs import Inputs

Encode = Callable[[list[str]], Tensor]


def validate(own: Tensor, bare: Tensor, encode: Encode, inputs: Inputs) -> dict[str, Any]:
    """On held-out classes: accuracy, and how far to trust a known vector; on other held-out names:
    how many true vectors are nearest to the encoder's own of their name.

    `own` and `bare` are the encoder's vectors of the classes, with and without context.
    """
    held = torch.where(inputs.held)[0]

    def accuracy(vectors: Tensor) -> float:
        logits, truth = logits_among(held, vectors, inputs)
        return round(100 * (logits.argmax(1) == truth).float().mean().item(), 1)

    trusts = {trust / 10: accuracy(leaning(own, inputs, trust / 10)) for trust in range(11)}
    return {
        "held_out_classes": len(held),
        "accuracy_true_vectors": accuracy(inputs.class_vectors),
        "accuracy_encoder": accuracy(own),
        "accuracy_without_context": accuracy(bare),
        "accuracy_by_trust": trusts,
        "trust": max(trusts, key=lambda t: trusts[t]),
        "cosine_held_out": (own * inputs.class_vectors)[held].sum(1).mean().item(),
        "cosine_taught": (own * inputs.class_vectors)[~inputs.held].sum(1).mean().item(),
        "other_names": {
            source: found_again(encode, inputs, names)
            for source, names in inputs.split.groups.items()
        },
    }


def leaning(own: Tensor, inputs: Inputs, trust: float) -> Tensor:
    """The encoder's vectors, those of known names moved towards the table's.

    The table's are mapped by a map that never saw the held-out ones.
    """
    mixed, made = own.clone(), inputs.targets.map
    for i, name in enumerate(inputs.first):
        if name in inputs.sources["wheel"]:
            known = made("wheel", inputs.sources["wheel"][name])
            mixed[i] = trust * known + (1 - trust) * mixed[i]
    return F.normalize(mixed, dim=-1)


def found_again(
    encode: Encode, inputs: Inputs, names: list[str], most: int = 200
) -> dict[str, Any]:
    """Of held-out names of one source."""
    names = names[:: 1 + len(names) // most]
    true = torch.stack([inputs.target(name) for name in names])
    own = encode(names)
    best = (true @ own.T).argmax(1)
    return {
        "names": len(names),
        "top1": round(100 * (best == torch.arange(len(names))).float().mean().item(), 1),
        "cosine": round((true * own).sum(1).mean().item(), 4),
    }


def logits_among(classes: Tensor, vectors: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The images of these classes against their vectors, not yet scaled, and the right answers."""
    place = torch.full((len(inputs.first),), -1, device=classes.device)
    place[classes] = torch.arange(len(classes), device=classes.device)
    truth = place[inputs.image_class]
    return inputs.images[truth >= 0] @ vectors[classes].T, truth[truth >= 0]


def fit_scale(
    own: Tensor, inputs: Inputs, trust: float, labels: int = 100, rounds: int = 20
) -> dict[str, Any]:
    """The likeliest logit scale over random sets of held-out names, as they will be asked for."""
    vectors, held = leaning(own, inputs, trust), torch.where(inputs.held)[0]
    known = torch.tensor([name in inputs.sources["wheel"] for name in inputs.first])
    found: dict[str, Any] = {}
    for kind, classes in (("any", held), ("known", held[known[held]])):
        random = np.random.default_rng(0)
        nll = dict.fromkeys(range(40, 221, 5), 0.0)
        for _ in range(rounds):
            some = random.permutation(len(classes))[: min(labels, 2 * len(classes) // 3)]
            logits, truth = logits_among(classes[torch.from_numpy(some)], vectors, inputs)
            for scale in nll:
                nll[scale] += F.cross_entropy(scale * logits, truth).item() / rounds
        best = min(nll, key=lambda scale: nll[scale])
        found |= {f"scale_{kind}": best, f"scale_nll_{kind}": nll[best]}
    return found
