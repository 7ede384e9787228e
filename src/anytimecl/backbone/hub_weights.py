"""Weights of a model in the Hugging Face layout, under canonical names and of checked shapes.

The tables in `families/*.json` list every weight of their family, so that a checkpoint with missing
or unexpected weights is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import layout
from anytimecl.backbone.hub_config import read_json
from anytimecl.backbone.spec import Preprocess, TailSpec
from anytimecl.errors import ModelError

_BLOCK = [
    f"{module}.{part}"
    for module in (
        "layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2", "self_attn.q_proj",
        "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
    )
    for part in ("weight", "bias")
]  # fmt: skip
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def weight_files(name: str, folder: Path) -> list[Path]:
    index = read_json(name, folder / layout.INDEX)
    names = sorted(set(index["weight_map"].values())) if index else [layout.WEIGHTS]
    files = [folder / Path(file).name for file in names]  # .name: an index cannot point elsewhere
    missing = [file.name for file in files if not file.is_file()]
    if missing and index:
        raise ModelError(
            f"{name} is not whole: {layout.some(missing)} of its {len(files)} weight files is "
            "missing. Copy or fetch it again."
        )
    if missing:
        config = read_json(name, folder / "config.json")
        raise layout.unreadable(name, layout.files_in(folder), config)
    return files


def places_of(
    name: str, family: Mapping[str, Any], spec: TailSpec, files: list[Path]
) -> dict[str, tuple[Path, str]]:
    """File of each canonical weight, and its name there."""
    found: dict[str, tuple[Path, str]] = {}
    for file in files:
        try:
            hub_names = names_in(file)
        except (OSError, safetensors.SafetensorError) as error:
            raise layout.damaged(name, file, error) from error
        for hub_name in hub_names:
            if not any(re.search(pattern, hub_name) for pattern in family["ignore"]):
                canonical = hub_name
                for pattern, replacement in family["rename"]:
                    canonical = re.sub(pattern, replacement, canonical)
                found[canonical] = file, hub_name
    absent = {*family.get("optional", [])} - set(found)
    expected = {*family["trunk"], *family["head"], *family["logits"]} - absent
    parts = {*_BLOCK, *family["scales"]}
    if spec.mlp == "swiglu":
        parts |= set(family.get("gates", []))
    for index in range(min(spec.last + 1, len(found) + 1)):  # a configuration may tell any number
        block = {f"layers.{index}.{part}" for part in parts}
        # An optional part is expected if any of its weights is there.
        optional = {f"layers.{index}.{part}" for part in family.get("optional", [])}
        expected |= block - (optional - set(found))
    if expected != set(found):
        lacks, extra = sorted(expected - set(found)), sorted(set(found) - expected)
        raise ModelError(
            f"The weights of {name} are not those of its configuration."
            + (f" Missing: {layout.some(lacks)}." if lacks else "")
            + (f" Not understood: {layout.some(extra)}." if extra else "")
        )
    return found


def names_in(file: Path) -> list[str]:
    with safetensors.safe_open(file, framework="pt") as weights:
        return list(weights.keys())


def weights_of(
    name: str,
    family: Mapping[str, Any],
    spec: TailSpec,
    prep: Preprocess,
    found: Mapping[str, tuple[Path, str]],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    """Weights of trunk and tail, logit scale and bias."""
    raw = {canonical: _read(name, *place) for canonical, place in found.items()}
    for gate in [key for key in raw if ".mlp.gate." in key]:  # beside what it multiplies
        other = gate.replace(".mlp.gate.", ".mlp.fc1.")
        raw[other] = torch.cat([raw.pop(gate), raw[other]])
    _check_shapes(name, spec, raw)
    logits = {key: float(raw.pop(key)) for key in family["logits"]}
    patch = raw["patch_embedding.weight"].shape[-1]
    grid = prep.height // patch, prep.width // patch
    positions = raw.pop("positions").reshape(-1, spec.width) if "positions" in raw else None
    trunk: dict[str, Tensor] = {}
    if "class" in raw:
        prefix = raw.pop("class").reshape(1, spec.width)
        if positions is not None:
            prefix, positions = prefix + positions[:1], positions[1:]
        if "registers" in raw:
            prefix = torch.cat([prefix, raw.pop("registers").reshape(-1, spec.width)])
        trunk["prefix"] = prefix.unsqueeze(0)  # [1, prefix, width]
    if positions is not None:
        trunk["positions"] = _fit(name, positions, grid, family["positions"])  # [patch, width]
    tail: dict[str, Tensor] = {}
    for key, value in raw.items():
        layer = re.match(r"layers\.(\d+)\.", key)
        in_tail = int(layer[1]) >= spec.first if layer else key in family["head"]
        (tail if in_tail else trunk)[key] = value
    if "head.probe" in tail:
        tail["head.probe"] = tail["head.probe"].reshape(1, spec.width)
        for part in ("weight", "bias"):  # torch packs the three projections into one
            packed = tail.pop(f"head.attention.in_proj_{part}")
            for letter, value in zip("qkv", packed.chunk(3), strict=True):
                tail[f"head.attention.{letter}_proj.{part}"] = value.contiguous()
    return trunk, tail, logits


def _check_shapes(name: str, spec: TailSpec, raw: Mapping[str, Tensor]) -> None:
    """Check shapes against the configuration; some wrong ones would run nevertheless."""
    width = spec.width
    for key, value in raw.items():
        # Output width of the first linear layer of this weight's MLP.
        second = raw.get(re.sub(r"fc1\.\w+$", "fc2.weight", key), value)
        hidden = second.shape[-1] * (2 if spec.mlp == "swiglu" else 1) if second.ndim else 0
        side = value.shape[-1] if value.ndim else 0
        shapes: dict[str, tuple[int | None, ...]] = {  # the first that matches; None: any number
            r"^logit_": (None,) * value.ndim,
            r"^patch_embedding\.weight$": (width, 3, side, side),
            r"^(positions|class|registers|head\.probe)$": (None,) * (value.ndim - 1) + (width,),
            r"^visual_projection\.": (None, width),
            r"in_proj_weight$": (3 * width, width),
            r"in_proj_bias$": (3 * width,),
            r"_proj\.weight$": (width, width),
            r"fc1\.weight$": (hidden, width),
            r"fc1\.bias$": (hidden,),
            r"fc2\.weight$": (width, None),
            r"": (width,),  # norms, biases, layer scales
        }
        shape = next(shape for pattern, shape in shapes.items() if re.search(pattern, key))
        fits = len(shape) == value.ndim and all(
            wanted in (None, given) for wanted, given in zip(shape, value.shape, strict=True)
        )
        if not fits:
            raise ModelError(
                f"The weights of {name} are not those of its configuration: {key} has the shape "
                f"{tuple(value.shape)} in a model of width {width}."
            )


def _read(name: str, file: Path, hub_name: str) -> Tensor:
    with safetensors.safe_open(file, framework="pt") as weights:
        value: Tensor = weights.get_tensor(hub_name)
    if value.dtype not in _FLOATS:
        kind = str(value.dtype).removeprefix("torch.")
        raise ModelError(
            f"{name} is quantised: {hub_name} is {kind}. Use the float model that it was made "
            "from, in 16 bits or more."
        )
    if not value.isfinite().all():
        raise ModelError(f"{name} is damaged: {hub_name} has numbers that are not finite.")
    # Cloned if float32 already: safetensors maps the file, which may be replaced.
    return value.to(torch.float32, copy=True)


def _fit(name: str, positions: Tensor, grid: tuple[int, int], how: str) -> Tensor:
    """Positions [patch, width] for the grid that the preprocessing gives."""
    side = math.isqrt(len(positions))
    if grid == (side, side) and side * side == len(positions):
        return positions
    if how == "fixed" or side * side != len(positions):
        raise ModelError(
            f"{name} has positions for {len(positions)} patches, and images have "
            f"{grid[0]} by {grid[1]}."
        )
    square = positions.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    fitted = F.interpolate(square, size=grid, mode="bicubic", antialias=how == "bicubic_antialias")
    return fitted.permute(0, 2, 3, 1).reshape(grid[0] * grid[1], -1).contiguous()
