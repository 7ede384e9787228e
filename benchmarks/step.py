"""One online step on this machine, beside a plain full-block step in the same run.

    python -m benchmarks.step [--device cpu] [--rounds 6]

ViT-B/32 sizes (50 tokens of 768), batch 32, 100 labels. The plain reference computes every token of
the block and uses torch's default AdamW. Products are in bfloat16 on processors that support it
(`fast/bf16.py`); the last line of each size is in float32 on all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.backbone.trunk import block
from anytimecl.loss import anytime_loss
from anytimecl.settings import LearnerConfig, Precision
from anytimecl.step import Batch
from anytimecl.tail import TailInput, Tokens, normalise

BATCH, LABELS, DIM = 32, 100, 512
TURN = 4  # steps


def make_spec(tokens: int, width: int = 768, heads: int = 12, dim: int = DIM) -> Spec:
    """Spec of a CLIP-like model of that size."""
    prep = Preprocess(224, 224, "shortest", 224, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    tail = TailSpec(11, 1, width, heads, "quick_gelu", 1e-5)
    return Spec("bench", "clip", prep, tail, tokens, dim, 100.0, 0.0, "")


def make_tail(spec: Spec, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under the usual names."""
    random = torch.Generator().manual_seed(seed)
    width, at = spec.tail.width, f"layers.{spec.tail.last}."
    shapes = {f"{at}self_attn.{n}_proj": (width, width) for n in ("q", "k", "v", "out")}
    shapes |= {at + "mlp.fc1": (4 * width, width), at + "mlp.fc2": (width, 4 * width)}
    params = {}
    for name, shape in shapes.items():
        params[name + ".weight"] = torch.randn(shape, generator=random) * 0.02
        params[name + ".bias"] = torch.zeros(shape[0])
    for name in (at + "layer_norm1", at + "layer_norm2", "post_layernorm"):
        params[name + ".weight"], params[name + ".bias"] = torch.ones(width), torch.zeros(width)
    params["visual_projection.weight"] = torch.randn(spec.dim, width, generator=random) * 0.02
    return params


def plain_step(
    spec: Spec, tail: dict[str, Tensor], tokens: Tensor, target: Tensor, vectors: Tensor
) -> Callable[[], None]:
    """The plain reference: every token through the block, then torch.optim.AdamW."""
    params = {n: p.clone().requires_grad_(n.startswith("layers.")) for n, p in tail.items()}
    other = torch.zeros((), requires_grad=True, device=tokens.device)
    trained = [p for p in params.values() if p.requires_grad] + [other]
    optimiser = torch.optim.AdamW(trained, lr=9.375e-6, weight_decay=0.05)

    def step() -> None:
        x = block(params, spec.tail, spec.tail.last, tokens)[:, 0]
        x = F.layer_norm(
            x, x.shape[-1:], params["post_layernorm.weight"], params["post_layernorm.bias"]
        )
        features = F.normalize(x @ params["visual_projection.weight"].T, dim=-1)
        loss = anytime_loss(100 * features @ vectors.T, other, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def timed(steps: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, float]:
    """Median milliseconds of each, alternating so that noise affects all equally.

    A turn is a few steps of a kind, since streams take consecutive steps.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            for _ in range(TURN):
                began = time.perf_counter()
                step()
                if device != "cpu":
                    torch.cuda.synchronize()
                if number:
                    taken[name].append(1000 * (time.perf_counter() - began))
    return {name: median(values) for name, values in taken.items()}


def our_step(
    spec: Spec,
    tail: dict[str, Tensor],
    context: Tensor | TailInput,
    target: Tensor,
    vectors: Tensor,
    precision: Precision = "auto",
) -> Callable[[], None]:
    """The step of `Trainer` after the batch is decoded."""
    learner = OnlineLearner(spec, tail, LearnerConfig(precision=precision))
    rows = torch.arange(len(vectors), device=vectors.device)
    batch = Batch(context, target, vectors, rows)
    return lambda: learner.apply(learner.look_ahead(batch))


def compare(title: str, count: int, device: str, rounds: int) -> None:
    """Print each implementation at one size, with its speed-up over the plain one."""
    spec = make_spec(count)
    tail = {n: p.to(device) for n, p in make_tail(spec).items()}
    random = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=random).to(device)  # noqa: E731
    tokens, vectors = draw(BATCH, count, 768), F.normalize(draw(LABELS, DIM), dim=-1)
    target = torch.arange(BATCH, device=device)
    own, mean = normalise(tokens[:, 0], 1e-5), draw(BATCH, 768)
    low = Tokens.low_rank(own, mean, draw(BATCH, 5, 768), draw(BATCH, count - 1, 5))
    seen = TailInput(tokens[:, 0], low)
    taken = timed(
        {
            "plain full block": plain_step(spec, tail, tokens, target, vectors),
            "single query, full tokens": our_step(spec, tail, tokens, target, vectors),
            "single query, compressed": our_step(spec, tail, seen, target, vectors),
            "the same in float32": our_step(spec, tail, seen, target, vectors, "float32"),
        },
        rounds,
        device,
    )
    for name, value in taken.items():
        ratio = taken["plain full block"] / value
        print(f"{title:9} {name:26} {value:8.2f} ms   {ratio:6.1f} x", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.step", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args(words)
    for title, count in (("ViT-B/32", 50), ("ViT-B/16", 197)):
        compare(title, count, given.device, given.rounds)


if __name__ == "__main__":
    main()
