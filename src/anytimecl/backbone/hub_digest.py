"""Digests of a model's files, for the fingerprint of its memories."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from anytimecl.backbone import embedded
from anytimecl.backbone.hub_text import HubText
from anytimecl.backbone.hub_weights import names_in
from anytimecl.backbone.text import TextEncoder


def digest_of(weight_files: list[Path], text: TextEncoder | None, folder: Path) -> str:
    """Digest of everything that determines embeddings: weights and the tokeniser's behaviour.

    Weights by name and value, whatever their files. The tokeniser by the ids of a few texts: its
    files also have irrelevant fields, such as their origin.
    """
    digest = hashlib.sha256(b"2")
    places = {name: file for file in weight_files for name in names_in(file)}
    for name, file in sorted(places.items()):
        if not name.endswith(".position_ids"):  # 0, 1, 2, ..., written by some versions
            with safetensors.safe_open(file, framework="pt") as weights:
                value: Tensor = weights.get_tensor(name)
            digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    if isinstance(text, HubText):
        digest.update(json.dumps([text.ids(probe) for probe in _PROBES]).encode())
    elif text is not None:
        _add_files(digest, [folder / name for name in embedded.TEXT_FILES])
    return digest.hexdigest()


# Never changed: fingerprints depend on them.
_PROBES = (
    "a photo of a cat.",
    "A PHOTO of the Café-au-lait!",
    "itap of 3,141 golden retrievers",
    "great white shark's tail; (small)",
    "naïve coöperation & co.",
    "猫と犬",
    "кошка и собака",
    "🐈",
    "  two   spaces and_an_underscore ",
    "supercalifragilisticexpialidocious " * 40,  # cut
)


def former_digest(folder: Path, weight_files: list[Path]) -> str:
    """The `_digest` of older versions, which their memories have."""
    digest = hashlib.sha256()
    text = [*_FORMER_TEXT_FILES, *embedded.TEXT_FILES]
    _add_files(digest, [*weight_files, *(folder / name for name in text)])
    return digest.hexdigest()


_FORMER_TEXT_FILES = [
    "added_tokens.json", "merges.txt", "special_tokens_map.json", "spiece.model",
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
]  # fmt: skip


def _add_files(digest: hashlib._Hash, files: list[Path]) -> None:
    """Add names and contents of existing files."""
    for file in files:
        if file.is_file():
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{file.name} {content}\n".encode())
