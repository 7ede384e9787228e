"""How large each channel of the trunk's layer norms gets, over ImageNet images.

    python -m recipes.embedded.ranges DATA OUT [--images 200]

DATA holds `imagenet5.zip`; OUT becomes `ranges.safetensors`, which the package carries and
`anytimecl.backbone.embedded.smooth` reads. They are measured on the float weights of the assembled
model. Another `ranges.safetensors` in the package makes another model, to be fetched again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPVisionModelWithProjection

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded.smooth import READERS
from anytimecl.images import iter_images

INSIDE = "vision_model.encoder."
LAST = f"{INSIDE}layers.{embedded.BLOCKS - 1}."  # a tail has it, never a trunk


@torch.no_grad()
def ranges(model: CLIPVisionModelWithProjection, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """The largest absolute value of each channel, [width], by the norm's name."""
    largest: dict[str, Tensor] = {}

    def watch(name: str, output: Tensor) -> None:
        found = output.abs().amax((0, 1))
        largest[name] = torch.maximum(largest.get(name, found), found)

    for name, module in model.named_modules():
        inside = name.startswith(INSIDE) and not name.startswith(LAST)
        if inside and name.rsplit(".", 1)[1] in READERS:
            at = name.removeprefix(INSIDE)
            module.register_forward_hook(lambda _, __, output, at=at: watch(at, output))
    for pixels in track(batches, "measuring"):
        model(pixels)
    return largest


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="recipes.embedded.ranges")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=200)
    given = parser.parse_args(words)
    refs = list(iter_images(given.data / "imagenet5.zip"))
    chosen = refs[:: max(1, len(refs) // given.images)]
    backbone = embedded.load()
    pixels = [backbone.pixels([ref.load()]) for ref in chosen]
    model = CLIPVisionModelWithProjection.from_pretrained(embedded.folder())
    save_file(ranges(model, pixels), given.out)


if __name__ == "__main__":
    main()
