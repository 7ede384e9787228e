"""Every family beside its own library: `python -m tests.backbone.compare` prints a table.

Tiny random models, saved as the hub keeps them, on eight pictures of many kinds. Pictures become
pixels by the image processor of transformers on its side, and by the loader's on ours. timm and
open_clip import torchvision, which this project does without, so what they said of eight inputs was
kept (`tests/fixtures/make_foreign.py`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import PIL.Image
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from tests.backbone import tiny
from torch import Tensor

from anytimecl import tail
from anytimecl.backbone import load

FAMILIES: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "CLIP": (tiny.clip, {}),
    "CLIP, GELU": (tiny.clip, {"hidden_act": "gelu"}),
    "MetaCLIP 2": (tiny.metaclip2, {}),
    "Chinese CLIP": (tiny.chinese_clip, {}),
    "SigLIP": (tiny.siglip, {"pieces": True}),
    "SigLIP 2, one resolution": (tiny.siglip, {}),
    "DINOv2": (tiny.dinov2, {}),
    "DINOv2, registers, SwiGLU": (tiny.dinov2, {"registers": 4, "swiglu": True}),
    "DINOv3": (tiny.dinov3, {}),
    "DINOv3, gated MLP": (tiny.dinov3, {"use_gated_mlp": True, "hidden_act": "silu"}),
    "ViT, DINO": (tiny.vit, {}),
    "ViT, MSN": (tiny.vit_msn, {}),
    "CLIP's image tower": (tiny.clip_vision, {"projection": False}),
    "SigLIP's image tower": (tiny.siglip_vision, {}),
}
FOREIGN = Path(__file__).parents[1] / "fixtures" / "foreign"
TEXTS = ["a photo of a cat.", "a photo of a dog.", "the great white shark"]
KEPT_TEXTS = ["a photo of a cat.", "the golden retriever", "a"]


class Compared(NamedTuple):
    """The largest difference of any number, None where a family has none such."""

    pixels: float | None
    tokens: float | None
    features: float
    text: float | None
    logits: float | None
    same_answers: bool  # the same label of the three for all eight pictures


def pictures() -> list[PIL.Image.Image]:
    """Of many shapes: noise, a gradient and flat patches."""
    random = np.random.default_rng(0)
    found = []
    for number in range(8):
        height, width = random.integers(30, 90, 2)
        ramp = np.linspace(0, 255, width)[None, :, None] * np.ones((height, 1, 3))
        noise = random.integers(0, 256, (height, width, 3))
        mixed = (ramp * (number / 7) + noise * (1 - number / 7)).astype(np.uint8)
        found.append(PIL.Image.fromarray(mixed))
    return found


@torch.no_grad()
def compare(folder: Path, tail_blocks: int | None = None) -> Compared:
    """A model in a folder, by this package and by transformers."""
    ours = load(folder, tail_blocks=tail_blocks)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    theirs = processor(pictures(), return_tensors="pt")["pixel_values"]
    pixels = ours.pixels(pictures())
    tower = getattr(model, "vision_model", model)
    seen = tower(theirs, output_hidden_states=True)
    # Before the first block of the tail: the states of blocks, the last of them last.
    expected = seen.hidden_states[-1 - ours.spec.tail.blocks]
    tokens = ours.trunk(pixels)
    features = tail.embed(ours.tail, ours.spec.tail, tokens)
    text = logits = None
    same = True
    if ours.text is not None:
        wanted = model.get_image_features(pixel_values=theirs).pooler_output
        own, names, scores = ours.text(TEXTS), *_texts(folder, model, theirs)
        text = _largest(own, names)
        images = F.normalize(features, dim=-1)
        mine = ours.spec.logit_scale * images @ own.T + ours.spec.logit_bias
        logits = _largest(mine, scores)
        same = bool(torch.equal(mine.argmax(1), scores.argmax(1)))
    else:
        wanted = seen.last_hidden_state[:, 0]  # the pooler of a plain ViT is of another task
        if model.config.model_type.startswith(("clip", "siglip")):
            wanted = seen.pooler_output
    return Compared(
        _largest(pixels, theirs),
        _largest(tokens, expected),
        _largest(features, wanted),
        text,
        logits,
        same,
    )


@torch.no_grad()
def compare_kept(folder: Path, tail_blocks: int | None = None) -> Compared:
    """A model of another library in a folder, beside what that library said once."""
    said = safetensors.torch.load_file(folder / "expected.safetensors")
    ours = load(folder, tail_blocks=tail_blocks)
    tokens = ours.trunk(said["pixels"])
    features = tail.embed(ours.tail, ours.spec.tail, tokens)
    if ours.text is None:
        own = _largest(tokens, said["tokens"]) if ours.spec.tail.blocks == 1 else None
        return Compared(None, own, _largest(features, said["features"]), None, None, True)
    images, words = F.normalize(features, dim=-1), ours.text(KEPT_TEXTS)
    logits = ours.spec.logit_scale * images @ words.T + ours.spec.logit_bias
    return Compared(
        None,
        None,
        _largest(images, said["image"]),
        _largest(words, said["text"]),
        _largest(logits, said["logits"]),
        len(logits) == 8 and bool(torch.equal(logits.argmax(1), said["logits"].argmax(1))),
    )


def kept(name: str, to: Path) -> Path:
    """A copy of such a model, with the tokeniser that it needs."""
    folder = Path(shutil.copytree(FOREIGN / name, to))
    if (folder / "open_clip_config.json").is_file():
        tokenizer = tiny.word_tokenizer() if "siglip" in name else tiny.clip_tokenizer()
        tokenizer.save_pretrained(folder)
    return folder


def _texts(folder: Path, model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors of the texts, and logits [image, text], as transformers gives them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    length = model.config.text_config.max_position_embeddings
    of_siglip = model.config.model_type == "siglip"
    tokens = tokenizer(
        TEXTS, padding="max_length", truncation=True, max_length=length, return_tensors="pt"
    )
    inputs = {"input_ids": tokens["input_ids"]}
    if not of_siglip:  # where padding is a part of the text
        inputs["attention_mask"] = tokens["attention_mask"]
    vectors = F.normalize(model.get_text_features(**inputs).pooler_output, dim=-1)
    return vectors, model(**inputs, pixel_values=pixels).logits_per_image


def _largest(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape, (one.shape, other.shape)
    return float((one - other).abs().max())


def main() -> None:
    """Print the table of docs/models.md."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    _line("family", "beside", *Compared._fields[:5], "8 answers")
    _line(*["---"] * 8)
    with tempfile.TemporaryDirectory() as root, mock.patch.dict(os.environ, ANYTIMECL_CACHE=root):
        for name, (make, how) in FAMILIES.items():
            _row(name, "transformers", compare(make(Path(root) / name, **how)))
        for name in sorted(folder.name for folder in FOREIGN.iterdir()):
            library = "open_clip" if name.startswith("open_clip") else "timm"
            _row(name, library, compare_kept(kept(name, Path(root) / name)))


def _row(name: str, beside: str, found: Compared) -> None:
    numbers = ["-" if value is None else f"{value:.0e}" for value in found[:5]]
    answers = "-" if found.text is None else "same" if found.same_answers else "DIFFER"
    _line(name, beside, *numbers, answers)


def _line(*cells: str) -> None:
    sys.stdout.write("| " + " | ".join(cells) + " |\n")


if __name__ == "__main__":
    main()
