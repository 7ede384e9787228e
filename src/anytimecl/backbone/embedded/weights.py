"""The embedded model's float32 weights: the tail, and the trunk for devices other than a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.backbone.trunk import TorchTrunk
from anytimecl.errors import ModelError

_PREFIXES = (
    ("vision_model.encoder.layers.", "layers."),
    ("vision_model.embeddings.", ""),
    ("vision_model.pre_layrnorm.", "pre_layernorm."),
    ("vision_model.post_layernorm.", "post_layernorm."),
)


def float_trunk(folder: Path, spec: TailSpec, device: str) -> TorchTrunk:
    """The trunk in float32; on a CPU the int8 one is faster."""
    params = read_weights(folder, device, lambda name: not in_tail(name, spec.first))
    positions = params.pop("position_embedding.weight")  # [token, width]
    params["prefix"] = (params.pop("class_embedding") + positions[:1]).unsqueeze(0)
    params["positions"] = positions[1:]
    return TorchTrunk(params, spec)


def tail_weights(folder: Path, spec: TailSpec, device: str) -> dict[str, Tensor]:
    """The pre-trained weights of the tail only."""
    return read_weights(folder, device, lambda name: in_tail(name, spec.first))


def in_tail(name: str, first: int) -> bool:
    """Whether a weight belongs to the blocks from `first` on, or to layers after them."""
    if name.startswith("layers."):
        return int(name.split(".")[1]) >= first
    return name.startswith(("post_layernorm.", "visual_projection."))


def read_weights(folder: Path, device: str, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Weights under canonical names, see `TailSpec`."""
    import safetensors

    file = folder / "model.safetensors"
    try:
        with safetensors.safe_open(file, framework="pt") as weights:
            names = {_canonical(name): name for name in weights.keys()}  # noqa: SIM118
        found = {}
        for canonical in filter(wanted, names):
            # Opened for each weight: pages of a mapped file count as RAM while it is open.
            with safetensors.safe_open(file, framework="pt") as weights:
                value = weights.get_tensor(names[canonical])
                found[canonical] = value.to(device, copy=True)  # not a view of the mapped file
        return found
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(
            f"{file} is damaged ({error}). Run `anytimecl model fetch embedded`."
        ) from error


def _canonical(name: str) -> str:
    for prefix, replacement in _PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name
