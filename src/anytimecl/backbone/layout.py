"""Layouts of model folders, and error messages for unsupported ones.

Pure functions of file names and configuration, for folders and repositories alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from anytimecl.errors import ModelError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


def tables() -> dict[str, dict[str, Any]]:
    """Layouts of each family's checkpoints, by the model type in config.json.

    A table may give only its differences from another one, named by "like".
    """
    found: dict[str, dict[str, Any]] = {}
    for entry in (resources.files(__package__) / "families").iterdir():
        if entry.name.endswith(".json"):
            table: dict[str, Any] = json.loads(entry.read_text(encoding="utf-8"))
            found[table["model_type"]] = table
    return {
        kind: {**found.get(table.get("like", ""), {}), **table} for kind, table in found.items()
    }


def lacking(files: Iterable[str], index: Mapping[str, Any] | None = None) -> list[str]:
    """Missing files that a model in the Hugging Face layout needs.

    `index` is the content of its index of weight files, if it has one.

    >>> lacking(["config.json", "pytorch_model.bin"])
    ['model.safetensors']
    """
    there = set(files)
    shards = sorted(set(index["weight_map"].values())) if index else [WEIGHTS]
    return [name for name in ("config.json", *shards) if name not in there]


def files_in(folder: Path) -> list[str]:
    """Names of the files in a folder and its subfolders; empty if there is no folder."""
    found = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_file():
            found.append(entry.name)
        elif entry.is_dir():
            found += [f"{entry.name}/{inner.name}" for inner in sorted(entry.iterdir())]
    return found


def unreadable(name: str, files: Iterable[str], config: Mapping[str, Any] | None) -> ModelError:
    """The error for a folder that cannot be loaded, with the nearest alternative.

    >>> print(unreadable("mine", ["config.json", "onnx/model.onnx"], {"model_type": "clip"}))
    mine has only ONNX graphs (onnx/model.onnx), which cannot learn. ...
    """
    files = sorted(files)
    if config is not None and (foreign := _foreign(name, config)) is not None:
        return foreign
    for ends, words in _FORMATS:
        if found := [file for file in files if file.endswith(ends)]:
            return ModelError(words.format(name=name, found=some(found)))
    if any(file.startswith("snapshots/") for file in files):
        return ModelError(
            f"{name} is a repository in the cache of huggingface_hub, not a model folder. Name the "
            "model as the hub does, OWNER/NAME, or one of the folders in snapshots."
        )
    if "config.json" not in files:
        return ModelError(
            f"{name} is not a model folder: it has no config.json. A model lies in a folder "
            f"with config.json and {WEIGHTS}, as save_pretrained of transformers writes it."
        )
    return ModelError(
        f"{name} has no {WEIGHTS}. Only safetensors weights are read; save the model with "
        "save_pretrained of transformers."
    )


def damaged(name: str, file: Path, error: Exception) -> ModelError:
    """The error for a damaged safetensors file."""
    with suppress(OSError), file.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            return ModelError(
                f"{file.name} of {name} is only a pointer of Git LFS, without the weights. Run "
                f"`git lfs pull` in {file.parent}, or name the model as the hub does."
            )
    return ModelError(f"{file.name} of {name} is damaged: {error}. Copy or fetch it again.")


_POINTER = b"version https://git-lfs"


def check_type(name: str, config: Mapping[str, Any]) -> None:
    """Raise ModelError for a configuration of an unknown family."""
    if (foreign := _foreign(name, config)) is not None:
        raise foreign


def _foreign(name: str, config: Mapping[str, Any]) -> ModelError | None:
    """The error for a configuration of an unknown family, or None."""
    known, kind = tables(), config.get("model_type")
    if "quantization_config" in config:
        method = dict(config["quantization_config"] or {}).get("quant_method", "some method")
        return ModelError(
            f"{name} is quantised ({method}), and a tail learns in float. Load the model that it "
            "was made from; `anytimecl export` makes an int8 trunk of it."
        )
    if kind in known:
        return None
    loads = f"anytimecl loads models of type {', '.join(sorted(known))}."
    if (what := of_timm(config)) is not None:
        if TIMM.fullmatch(what):
            return None
        return ModelError(
            f"{name} is in the layout of timm ({what}). Of that, vision transformers with a class "
            f"token load, such as timm's vit_base_patch16_224. Near to it: {like(what)}."
        )
    if "auto_map" in config:
        return ModelError(
            f"{name} is of type {kind!r} and brings its own program code (auto_map), which "
            f"anytimecl never runs. {loads} {_NEAREST.get(str(kind), _CLIP)}"
        )
    if kind is None:
        return ModelError(f"The config.json of {name} tells no model_type. {loads}")
    return ModelError(
        f"{name} is of type {kind!r}, which anytimecl cannot load. {loads} "
        f"{_NEAREST.get(str(kind), '')}".rstrip()
    )


def of_timm(config: Mapping[str, Any]) -> str | None:
    """The architecture in a configuration of timm; None for other configurations."""
    if "model_type" in config or not {"pretrained_cfg", "architecture"} & set(config):
        return None
    return str(config.get("architecture", "unnamed"))


def like(architecture: str) -> str:
    """A repository with such a tower in the layout of transformers."""
    for part, repository in _TIMM:
        if part in architecture:
            return repository
    return "google/vit-base-patch16-224"


# Supported architectures of timm.
TIMM = re.compile(
    r"(vit|deit|deit3)_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_"
    r"((clip_(quickgelu_)?)?\d+|(reg4_)?dinov2)"
)
_TIMM = (
    ("siglip", "google/siglip-base-patch16-224"),
    ("clip", "openai/clip-vit-base-patch16"),
    ("dinov2", "facebook/dinov2-base"),
    ("reg4", "facebook/dinov2-with-registers-base"),
    ("dinov3", "facebook/dinov3-vitb16-pretrain-lvd1689m"),
)
_CLIP = "Near to most such models: openai/clip-vit-base-patch16."
_VIT = "Near to it: google/vit-base-patch16-224, or facebook/dinov2-base."
_NEAREST = {
    "siglip2": "Its grid differs from picture to picture (naflex), and a memory stores as many "
    "tokens of each. SigLIP 2 also comes at one fixed resolution (siglip2-...-224 and the like); "
    "those load.",
    "siglip2_vision_model": "Its grid differs from picture to picture (naflex). The image side of "
    "a SigLIP 2 at one fixed resolution loads.",
    "dinov3_convnext": "DINOv3 also comes as a vision transformer (dinov3-vit...).",
    "altclip": _CLIP,
    "align": _CLIP,
    "blip": _CLIP,
    "clipseg": _CLIP,
    "groupvit": _CLIP,
    "owlvit": _CLIP,
    "x_clip": _CLIP,
    "beit": _VIT,
    "deit": _VIT,
    "swin": _VIT,
    "timm_wrapper": "Load the repository of timm that it was made from, such as "
    "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k.",
    "vit_mae": _VIT,
}
_PICKLED = (
    "Only safetensors weights are read, since other formats can run code; convert the model with "
    "save_pretrained of transformers, on a machine where you trust it."
)
# The first that ends one of the files says what it is. `{found}` is those files.
_FORMATS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("model_index.json",),
        "{name} is a pipeline of diffusers ({found}), with several models in folders of their own. "
        "Name the folder of an image encoder in it, or the model that it was made from.",
    ),
    (
        ("adapter_config.json", "adapter_model.safetensors"),
        "{name} is an adapter ({found}) for another model. Merge it into that model "
        "(merge_and_unload of peft), save the result with save_pretrained, and load that folder.",
    ),
    (
        (OPEN_CLIP_WEIGHTS,),
        "{name} has weights as open_clip names them ({found}) and no open_clip_config.json, so "
        "nothing says what model they are of. Put that file of its repository beside them.",
    ),
    (
        ("open_clip_pytorch_model.bin", "open_clip_pytorch_model.pt"),
        "{name} is in the layout of open_clip with pickled weights ({found}), which can run code. "
        "open_clip's layout loads with safetensors: open_clip_config.json beside "
        "open_clip_model.safetensors.",
    ),
    (
        (".fp16.safetensors", ".bf16.safetensors", ".non_ema.safetensors"),
        "{name} has its weights only under the name of a variant ({found}). Load the revision or "
        "repository that has " + WEIGHTS + ", or copy the file to a folder under that name and "
        "load the folder: half precision is read.",
    ),
    (
        ("pytorch_model.bin", "pytorch_model.bin.index.json", ".pt", ".pth", ".ckpt", ".bin"),
        "{name} has only pickled weights ({found}) and no " + WEIGHTS + ". " + _PICKLED,
    ),
    (
        (".onnx",),
        "{name} has only ONNX graphs ({found}), which cannot learn. Load the model that they were "
        "exported from; the page of the repository names it.",
    ),
    (
        ("tf_model.h5", ".msgpack", ".npz", ".keras"),
        "{name} has only weights for TensorFlow or JAX ({found}). Load it with transformers once "
        "and save it with save_pretrained, which writes " + WEIGHTS + ".",
    ),
    (
        (".gguf", ".tflite", ".mlmodel", ".mlpackage", ".xml"),
        "{name} has only weights for another runtime ({found}). Load the model that they were made "
        "from.",
    ),
)


def some(names: list[str]) -> str:
    """The first of them, and the number of the rest."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
