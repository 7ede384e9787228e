"""One online step on this machine, beside a plain full-block step in the same run.

    python -m benchmarks.step [--device cpu]

ViT-B/32 sizes (50 tokens of 768), batch 32, 100 labels. The plain reference computes every token
of the block and steps with torch's default AdamW.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.backbone.trunk import block
from anytimecl.learner import Batch, Learner, LearnerConfig
from anytimecl.loss import anytime_loss
from anytimecl.tail import LowRank, Seen, look

BATCH, LABELS, DIM = 32, 100, 512


def make_spec(tokens: int, width: int = 768, heads: int = 12) -> Spec:
    """A CLIP-like model of that size, as data."""
    prep = Preprocess(224, 224, "shortest", 224, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    tail = TailSpec(11, 1, width, heads, "quick_gelu", 1e-5)
    return Spec("bench", "clip", prep, tail, tokens, DIM, 100.0, 0.0, "")


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
    params["visual_projection.weight"] = torch.randn(DIM, width, generator=random) * 0.02
    return params


def plain_step(
    spec: Spec, tail: dict[str, Tensor], tokens: Tensor, target: Tensor, vectors: Tensor
) -> Callable[[], None]:
    """The obvious way: every token through the block, then torch.optim.AdamW as it comes."""
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
    """Median milliseconds of each, taken in turns so that noise falls on all alike."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            if number >= 2:
                taken[name].append(1000 * (time.perf_counter() - began))
    return {name: median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    for title, count in (("ViT-B/32", 50), ("ViT-B/16", 197)):
        spec = make_spec(count)
        tail = {n: p.to(given.device) for n, p in make_tail(spec).items()}
        tokens = torch.randn(BATCH, count, 768, device=given.device)
        target = torch.arange(BATCH, device=given.device)
        vectors = F.normalize(torch.randn(LABELS, DIM, device=given.device), dim=-1)
        rows = torch.arange(LABELS, device=given.device)
        seen = look(tokens, 1e-5)
        low = LowRank(
            torch.randn(BATCH, count - 1, 5, device=given.device),
            torch.randn(BATCH, 5, 768, device=given.device),
            torch.randn(BATCH, 768, device=given.device),
        )

        def ours(context: Tensor | Seen) -> Callable[[], None]:
            learner = Learner(spec, tail, LearnerConfig())
            batch = Batch(context, target, vectors, rows)
            return lambda: learner.apply(learner.look_ahead(batch))

        steps = {
            "plain full block": plain_step(spec, tail, tokens, target, vectors),
            "single query, full tokens": ours(tokens),
            "single query, compressed": ours(Seen(seen.cls, low)),
        }
        taken = timed(steps, given.rounds, given.device)
        plain = taken["plain full block"]
        for name, value in taken.items():
            print(f"{title:9} {name:26} {value:8.2f} ms   {plain / value:6.1f} x", flush=True)


if __name__ == "__main__":
    main()
