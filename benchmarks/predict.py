"""What answering and consolidating cost on the embedded model, each beside its reference.

    python -m benchmarks.predict [--rounds 15] [--stored 500]

1. `predict` for one image and for 32, over 100 learned labels, relative to encoding
   the same images.
2. `consolidate`: one epoch over the stored examples, including reading, decoding and the
   checkpoint, relative to a plain epoch over as many full tokens in RAM: every token through the
   block, in the same batches, and torch's default AdamW.

All alternate, so that other load on the machine affects both sides.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from benchmarks.encode import SETTLE
from benchmarks.learn import pictures
from PIL import Image
from torch import Tensor

from anytimecl import AnytimeClassifier
from anytimecl.backbone import Backbone, load
from anytimecl.backbone.trunk import block
from anytimecl.consolidation import CHUNK
from anytimecl.loss import anytime_loss

LABELS, MANY = 100, 32
EPOCHS = 3  # of each kind, for the median


def in_turns(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, alternating, after one warm-up round."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            time.sleep(SETTLE)
            began = time.perf_counter()
            run()
            if number:
                taken[name].append(1000 * (time.perf_counter() - began))
    return {name: median(values) for name, values in taken.items()}


def predict_against_encode(
    clf: AnytimeClassifier, images: Sequence[Image.Image], rounds: int
) -> None:
    """One image, and a batch."""
    for some in ([images[0]], list(images)):
        taken = in_turns(
            {
                "encode": partial(clf.backbone.encode, some),
                "predict": partial(clf.predict, some),
            },
            rounds,
        )
        ours, plain = taken["predict"], taken["encode"]
        print(
            f"{len(some):3} images: encode {plain:.1f} ms, predict {ours:.1f} ms: "
            f"{ours / plain:.2f} x",
            flush=True,
        )


def plain_epoch(
    backbone: Backbone, tokens: Tensor, target: Tensor, vectors: Tensor
) -> Callable[[], None]:
    """Reference: all tokens [example, token, width] in one step, since they are one batch."""
    spec = backbone.spec.tail
    params = {
        name: value.clone().requires_grad_(name.startswith("layers."))
        for name, value in backbone.tail.items()
    }
    other = torch.zeros((), requires_grad=True)
    trained = [value for value in params.values() if value.requires_grad]
    optimiser = torch.optim.AdamW([*trained, other], lr=1e-4, weight_decay=0.05)

    def epoch() -> None:
        optimiser.zero_grad()
        for start in range(0, len(tokens), CHUNK):
            rows = slice(start, start + CHUNK)
            x = block(params, spec, spec.last, tokens[rows])[:, 0]
            x = F.layer_norm(
                x,
                x.shape[-1:],
                params["post_layernorm.weight"],
                params["post_layernorm.bias"],
                spec.norm_eps,
            )
            features = F.normalize(x @ params["visual_projection.weight"].T, dim=-1)
            loss = anytime_loss(100 * features @ vectors.T, other, target[rows])
            (loss * len(x) / len(tokens)).backward()
        optimiser.step()

    return epoch


def stored_images(tokens: Tensor, count: int) -> Tensor:
    """Tokens of `count` different images: the same with noise, since equal ones are stored once."""
    noise = torch.randn(count, *tokens.shape[1:], generator=torch.Generator().manual_seed(0))
    return tokens[torch.arange(count) % len(tokens)] + 0.3 * noise


def consolidate_against_plain(clf: AnytimeClassifier, tokens: Tensor) -> None:
    """Milliseconds per example of an epoch over these, which are all that is stored."""
    count = len(clf)
    if count != len(tokens):
        raise SystemExit(f"{count} examples are stored, not {len(tokens)}.")
    names = clf.labels
    target = torch.arange(count) % len(names)
    vectors = clf.backbone.embed_labels(names)
    taken = in_turns(
        {
            "plain": plain_epoch(clf.backbone, tokens, target, vectors),
            "ours": partial(clf.consolidate, 1),
        },
        EPOCHS,
    )
    ours, plain = taken["ours"] / count, taken["plain"] / count
    print(
        f"an epoch over {count}: plain {plain:.2f} ms an example, consolidate {ours:.2f} ms: "
        f"{plain / ours:.1f} times faster",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.predict", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--stored", type=int, default=500)
    given = parser.parse_args(words)
    backbone = load("embedded")
    images = pictures(MANY)
    tokens = stored_images(backbone.encode(images), given.stored)
    with (
        tempfile.TemporaryDirectory() as folder,
        AnytimeClassifier.open(folder, model=backbone) as clf,
    ):
        for i, each in enumerate(tokens):
            clf.learn_tokens(each, f"label {i % LABELS}")
        predict_against_encode(clf, images, given.rounds)
        consolidate_against_plain(clf, tokens)


if __name__ == "__main__":
    main()
