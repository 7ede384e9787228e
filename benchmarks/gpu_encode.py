"""What a GPU's trunk takes in each precision, launched kernel by kernel and captured as one graph.

    python -m benchmarks.gpu_encode OUT [--device cuda] [--images pets.zip]

With --images, the embedded model on 256 of these images, in both of its precisions. Otherwise
ViT-B/16 sizes, eleven blocks, random weights. For each: milliseconds per batch, speed-up over
float32 launched kernel by kernel, and the smallest cosine of a token. OUT gets one JSON line per
figure. On a CPU it runs without graphs, to test the script.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.gpu import milliseconds
from torch import Tensor

from anytimecl.backbone import PRECISIONS, load
from anytimecl.backbone.spec import TailSpec
from anytimecl.backbone.trunk import trunk_tokens
from anytimecl.fast.cuda_graph import capture
from anytimecl.images import iter_images, load_image
from anytimecl.tail import images_of

WIDTH, BLOCKS, PATCH, SIDE = 768, 11, 16, 224
SPEC = TailSpec(BLOCKS, 1, WIDTH, 12, "quick_gelu", 1e-5)


def trunk_weights() -> dict[str, Tensor]:
    """Random weights under the usual names."""
    random = torch.Generator().manual_seed(0)
    count = (SIDE // PATCH) ** 2

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * 0.03

    params = {"patch_embedding.weight": draw(WIDTH, 3, PATCH, PATCH)}
    params |= {"positions": draw(1, count, WIDTH), "prefix": draw(1, 1, WIDTH)}
    norms = ["pre_layernorm"]
    for at in (f"layers.{index}." for index in range(BLOCKS)):
        shapes = {f"self_attn.{n}_proj": (WIDTH, WIDTH) for n in ("q", "k", "v", "out")}
        shapes |= {"mlp.fc1": (4 * WIDTH, WIDTH), "mlp.fc2": (WIDTH, 4 * WIDTH)}
        for name, shape in shapes.items():
            params[f"{at}{name}.weight"] = draw(*shape)
            params[f"{at}{name}.bias"] = torch.zeros(shape[0])
        norms += [at + "layer_norm1", at + "layer_norm2"]
    for name in norms:
        params[name + ".weight"], params[name + ".bias"] = torch.ones(WIDTH), torch.zeros(WIDTH)
    return params


def ways(params: dict[str, Tensor], pixels: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Implementations by name; the first is the reference."""
    light = {n: p.half() if n.endswith("weight") and p.dim() > 1 else p for n, p in params.items()}

    def plain() -> Tensor:
        return trunk_tokens(params, SPEC, pixels)

    def tf32() -> Tensor:
        torch.set_float32_matmul_precision("high")
        try:
            return plain()
        finally:
            torch.set_float32_matmul_precision("highest")

    def mixed(kind: torch.dtype) -> Tensor:
        with torch.autocast(pixels.device.type, kind):
            own = light if kind == torch.float16 else params
            return trunk_tokens(own, SPEC, pixels).float()

    return {
        "float32": plain,
        "TF32": tf32,
        "float16": lambda: mixed(torch.float16),
        "bfloat16": lambda: mixed(torch.bfloat16),
    }


def captured(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same as one CUDA graph."""
    found: list[Tensor] = []

    def once() -> None:
        found[:] = [run()]

    replay = capture(once)

    def again() -> Tensor:
        replay()
        return found[0]

    return again


def of_model(images: Path, device: str) -> Iterator[dict[str, Any]]:
    """The embedded model in both precisions: the rate, and the smallest cosine of embeddings."""
    refs = list(itertools.islice(iter_images(images), 256))
    found: dict[str, Tensor] = {}
    reference = 0.0
    for precision in PRECISIONS:
        options = {"precision": precision}
        model = load({"name": "embedded-float", "options": options}, device=device)
        pixels = torch.cat([model.pixels([load_image(ref.read())]) for ref in refs]).to(device)
        vectors = [images_of(model.tail, model.spec.tail, model.trunk(p)) for p in pixels.split(32)]
        found[precision] = torch.cat(vectors)
        taken = milliseconds(lambda m=model, p=pixels[:32]: m.trunk(p), device)
        reference = reference or taken
        cosine = F.cosine_similarity(found[precision], found[PRECISIONS[0]]).min()
        yield {
            "images": 32,
            "way": f"embedded-float, {precision}",
            "milliseconds": round(taken, 3),
            "times": round(reference / taken, 2),
            "cosine": round(float(cosine), 6),
        }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=Path, help="a folder or zip")
    given = parser.parse_args(words)
    torch.set_grad_enabled(False)
    cuda = given.device != "cpu"
    card = torch.cuda.get_device_name(given.device) if cuda else "CPU"
    about = {"card": card, "torch": torch.__version__}
    if given.images is not None:
        for figure in of_model(given.images, given.device):
            print(json.dumps(figure), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(about | figure) + "\n")
        return
    params = {name: value.to(given.device) for name, value in trunk_weights().items()}
    for count in (1, 32) if cuda else (1,):
        pixels = torch.randn(count, 3, SIDE, SIDE, device=given.device)
        runs = ways(params, pixels)
        if cuda:
            runs |= {f"{name}, captured": captured(run) for name, run in runs.items()}
        wanted = runs["float32"]().clone()
        reference = milliseconds(runs["float32"], given.device)
        for name, run in runs.items():
            cosine = F.cosine_similarity(run(), wanted, dim=-1).min()
            taken = milliseconds(run, given.device)
            figure = {"images": count, "way": name, "milliseconds": round(taken, 3)}
            figure |= {"times": round(reference / taken, 2), "cosine": round(float(cosine), 6)}
            print(json.dumps(figure), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(about | figure) + "\n")


if __name__ == "__main__":
    main()
