"""Pictures, what the frozen trunk makes of them, and what each form of record keeps of that."""

from __future__ import annotations

import io
import multiprocessing
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import Spec, TailSpec
from anytimecl.backbone.embedded import assemble
from anytimecl.backbone.preprocess import from_config, pixels
from anytimecl.codec import Codec, make_codec
from anytimecl.tail import TailInput, Tokens

GRID = 14  # patches along a side; the attacker paints 8 by 8 pixels for each
SIDE = 8 * GRID
# What the attacker is given. Order: whether it is told which patch lay where.
ATTACKS = {
    "tokens-fp16": "all tokens, in order",
    "tokens, no order": "all tokens, order withheld",
    "pca-image-cls-int8": "the paper's codec, in order",
    "attention-pca": "ours, which stores no order",
    "class token": "the class token alone",
}


class Pictures(NamedTuple):
    """A set of pictures, and what the frozen trunk makes of them."""

    tokens: Tensor  # [picture, token, width] float16
    targets: Tensor  # [picture, 3, SIDE, SIDE] uint8


class View(NamedTuple):
    """What one form of record tells of the pictures."""

    cls: Tensor  # [picture, width]
    patches: Tensor  # [picture, patch, width]; no patch at all: the class token alone
    ordered: bool
    size: float  # bytes of a record, on average


def split(files: Sequence[str]) -> dict[str, list[str]]:
    """By picture: the last of each class is held out, every fourth of those to choose by."""
    classes: dict[str, list[str]] = {}
    for file in sorted(files):
        classes.setdefault(file.rsplit("/", 1)[0], []).append(file)
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for number, own in enumerate(classes.values()):
        parts["train"] += own[:-1]
        parts["test" if number % 4 else "validation"].append(own[-1])
    return parts


def describe() -> Spec:
    """The embedded model; labels have no part in this, so neither has its scale."""
    config = assemble.CONFIG
    tail = TailSpec(
        first=assemble.BLOCKS - 1,
        blocks=1,
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        activation=config["hidden_act"],
        norm_eps=config["layer_norm_eps"],
    )
    prep = from_config(assemble.PREPROCESSOR, "embedded")
    dim = config["projection_dim"]
    return Spec("embedded", "clip", prep, tail, assemble.TOKENS, dim, 100.0, 0.0, "privacy")


Trunk = Callable[[Tensor], Tensor]


@torch.no_grad()
def encode(
    archive: Path, files: Sequence[str], trunk: Trunk, device: str, mirrored: bool
) -> Pictures:
    """Pictures of a zip through the trunk; `mirrored` adds each one's mirror image."""
    prep = describe().preprocess
    mean, std = (torch.tensor(values)[:, None, None] for values in (prep.mean, prep.std))

    def one(raw: bytes) -> Tensor:
        return pixels(PIL.Image.open(io.BytesIO(raw)).convert("RGB"), prep)

    tokens, targets = [], []
    with zipfile.ZipFile(archive) as opened, ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(files), 128):
            raw = [opened.read(file) for file in files[start : start + 128]]
            batch = torch.stack(list(pool.map(one, raw)))
            if mirrored:
                batch = torch.cat([batch, batch.flip(-1)])
            tokens.append(trunk(batch.to(device)).half())
            small = F.avg_pool2d(batch * std + mean, prep.width // SIDE)
            targets.append((small * 255).round().clamp(0, 255).byte().to(device))
    return Pictures(torch.cat(tokens), torch.cat(targets))


_codec: Codec  # of a process that makes records


def _start(name: str, tail: Mapping[str, np.ndarray[Any, Any]]) -> None:
    global _codec
    torch.set_num_threads(1)  # codecs run one picture at a time, on one core
    _codec = make_codec(name, describe(), {key: torch.from_numpy(v) for key, v in tail.items()})


def _make(tokens: np.ndarray[Any, Any]) -> list[bytes]:
    return [_codec.encode(torch.from_numpy(one).float()) for one in tokens]


def records(
    name: str, tail: Mapping[str, Tensor], tokens: Tensor, workers: int
) -> Iterator[list[bytes]]:
    """Batches of records, as the memory would have them."""
    batches = [own.cpu().numpy() for own in tokens.split(256)]
    if workers < 2:
        codec = make_codec(name, describe(), tail)
        for batch in batches:
            yield [codec.encode(torch.from_numpy(one).float()) for one in batch]
        return
    # As arrays: tensors would travel through shared memory, of which containers have little.
    plain = {key: value.numpy() for key, value in tail.items()}
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(workers, context, _start, (name, plain)) as pool:
        yield from pool.map(_make, batches)


def view(attack: str, tokens: Tensor, tail: Mapping[str, Tensor], workers: int) -> View:
    """Tokens [picture, token, width] as a form of record gives them back."""
    full = 2.0 * tokens[0].numel()
    if attack.startswith("tokens"):
        return View(tokens[:, 0], tokens[:, 1:], attack == "tokens-fp16", full)
    if attack == "class token":
        return View(tokens[:, 0], tokens[:, :0], True, full / tokens.shape[1])
    codec = make_codec(attack, describe(), tail)
    cls, patches, sizes = [], [], []
    for batch in records(attack, tail, tokens, workers):
        sizes += [len(record) for record in batch]
        back = codec.decode(batch, tokens.device)
        if isinstance(back, TailInput):
            cls.append(back.cls.half())
            patches.append(_multiplied(back.tokens)[:, 1:].half())
        else:
            cls.append(back[:, 0].half())
            patches.append(back[:, 1:].half())
    in_order = attack != "attention-pca"
    return View(torch.cat(cls), torch.cat(patches), in_order, float(np.mean(sizes)))


def _multiplied(tokens: Tokens) -> Tensor:
    """[picture, token, width]."""
    return tokens.parts if tokens.coefficients is None else tokens.coefficients @ tokens.parts
