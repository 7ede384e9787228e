"""How near the int8 trunk is to its own weights in float, beside the source's own int8 trunk.

    python -m benchmarks.trunk DATA [--images 16]

Half of the images are from ImageNet, half from resisc12's training split (DATA has both as zips).
Tokens are compared after the tail's first norm: norm of the difference relative to the norm of the
token, mean over tokens; features by their cosine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
import PIL.Image
import torch
from torch import Tensor

from anytimecl.backbone import embedded, load
from anytimecl.backbone.embedded import assemble, fetch
from anytimecl.backbone.trunk import OnnxTrunk
from anytimecl.images import iter_images
from anytimecl.tail import embed, normalise


def some(archive: Path, count: int) -> list[PIL.Image.Image]:
    """Evenly spaced images of the training split, if there are splits."""
    refs = [ref for ref in iter_images(archive) if ref.split != "test"]
    return [ref.load() for ref in refs[:: max(1, len(refs) // count)][:count]]


def source_trunk(folder: Path) -> OnnxTrunk:
    """The trunk in the wheel, cut before the last block and not smoothed."""
    wheel = embedded.wheel_folder() / fetch.catalogue()[1][assemble.SOURCE].file
    file = folder / "source.onnx"
    onnx.save_model(assemble.cut(assemble.read_source(wheel), assemble.cut_point(1)), file)
    return OnnxTrunk(file, one_by_one=True)


@torch.no_grad()
def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.trunk")
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=16)
    given = parser.parse_args(words)
    half = given.images // 2
    images = [
        image
        for name in ("resisc12", "imagenet5")
        for image in some(given.data / f"{name}.zip", half)
    ]
    model, floating = load("embedded"), load("embedded-float")
    pixels = model.pixels(images)

    def features(tokens: Tensor) -> Tensor:
        return embed(model.tail, model.spec.tail, tokens)

    wanted = floating.trunk(pixels)
    target = normalise(wanted, model.spec.tail.norm_eps)
    with tempfile.TemporaryDirectory() as folder:
        trunks = {"source": source_trunk(Path(folder)), "smoothed": model.trunk}
        for name, trunk in trunks.items():
            tokens = trunk(pixels)
            gap = (normalise(tokens, model.spec.tail.norm_eps) - target).norm(dim=-1)
            off = gap / target.norm(dim=-1)  # [image, token]
            cosine = torch.cosine_similarity(features(tokens), features(wanted))
            print(
                f"{name:9} tokens off by {100 * off.mean():.1f} %, "
                f"class token {100 * off[:, 0].mean():.1f} %; "
                f"features' cosine {cosine.mean():.4f}, least {cosine.min():.4f}"
            )


if __name__ == "__main__":
    main()
