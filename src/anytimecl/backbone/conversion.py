"""Conversion of other libraries' checkpoints to the layout of transformers, cached."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from anytimecl.backbone.embedded.fetch import sha256_of
from anytimecl.backbone.layout import WEIGHTS, damaged
from anytimecl.backbone.making import made_once
from anytimecl.backbone.text import cache_folder


def conversion_of(
    kind: str,
    source: Path,
    files: Sequence[str],  # of the original model
    copied: Sequence[str],  # those copied unchanged
    described: Callable[[], Mapping[str, Mapping[str, Any]]],  # JSON files
    weights: Callable[[], Mapping[str, Tensor]],
) -> Path:
    """The converted model's folder in the cache, created on first use.

    `kind` identifies the layout and the version of its converter; each has its own folder.
    """
    marks = [sha256_of(source / file) for file in files]
    mark = hashlib.sha256(" ".join([kind, *files, *marks]).encode()).hexdigest()[:16]
    made = cache_folder() / "models" / f"{kind}-{mark}"

    def make(folder: Path) -> None:
        for file in copied:
            shutil.copyfile(source / file, folder / file)
        for file, values in described().items():  # may replace a copied file
            (folder / file).write_text(json.dumps(values, indent=2), encoding="utf-8")
        save_file(dict(weights()), folder / WEIGHTS, {"format": "pt"})

    return made_once(made, (made / WEIGHTS).is_file, make)


def renamed(weights: Mapping[str, Tensor], rename: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Rename weights by patterns, and split packed attention projections."""
    found: dict[str, Tensor] = {}
    for own, value in weights.items():
        name = own
        for pattern, replacement in rename:
            name = re.sub(pattern, replacement, name)
        if packed := re.search(r"self_attn\.in_proj_(weight|bias)$", name):
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                at = f"{name[: packed.start()]}self_attn.{letter}_proj.{packed[1]}"
                found[at] = part.contiguous()
        else:
            found[name] = value
    return found


def read_weights(name: str, file: Path) -> dict[str, Tensor]:
    """Read the weights in a model's safetensors file."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise damaged(name, file, error) from error
