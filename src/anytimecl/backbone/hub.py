"""Models in the Hugging Face layout, from the hub, its cache, or a folder.

Weights are read from safetensors files and renamed to canonical names by the tables in
`families/*.json`. A table lists every weight of its family, so that a checkpoint with missing or
unexpected weights is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import (
    Backbone,
    ModelCard,
    TextEncoder,
    embedded,
    layout,
    open_clip,
    preprocess,
    repository,
    timm,
)
from anytimecl.backbone.spec import Preprocess, Rotary, Spec, TailSpec
from anytimecl.backbone.text import HubText, LabelCache
from anytimecl.backbone.trunk import TorchTrunk
from anytimecl.errors import AnytimeError, ModelError

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]
_ACTIVATIONS: dict[str, Activation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_BLOCK = [
    f"{module}.{part}"
    for module in (
        "layer_norm1", "layer_norm2", "mlp.fc1", "mlp.fc2", "self_attn.q_proj",
        "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
    )
    for part in ("weight", "bias")
]  # fmt: skip
_LOCAL: Any = {"local_files_only": True, "trust_remote_code": False}  # no network, no remote code
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def load(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    """Load the model of a card; its last `tail_blocks` blocks become the tail."""
    try:
        return _load(card, tail_blocks, device)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        if isinstance(error, AnytimeError):
            raise
        raise ModelError(
            f"{card.source} cannot be loaded: its files do not fit together ({error!r}). Copy or "
            "fetch it again."
        ) from error


def _load(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    name = card.source
    found_in = folder = _folder(name)
    if open_clip.is_one(folder):
        folder = open_clip.converted(name, folder)
    elif timm.is_one(folder):
        folder = timm.converted(name, folder)
    family, config = _family(name, folder)
    prep = _preprocess(name, folder, family, config)
    least = 0 if family["pool"] == "map" else 1  # a pooling head can be a tail alone
    vision = _vision(name, family, config, least if tail_blocks is None else tail_blocks, prep)
    files = _weight_files(name, folder)
    found = _named(name, family, vision, files)
    trunk, tail, logits = _weights(name, family, vision, prep, found)
    patch = trunk["patch_embedding.weight"].shape[-1]
    grid = (prep.height // patch) * (prep.width // patch)
    dim = len(tail.get("visual_projection.weight", range(vision.width)))
    text, scale = _text(name, folder, family, config, dim, device)
    if "logit_scale" in logits:
        scale = math.exp(logits["logit_scale"])
    spec = Spec(
        name=name,
        family=family["family"],
        preprocess=prep,
        tail=vision,
        tokens=grid + (len(trunk["prefix"][0]) if "prefix" in trunk else 0),
        dim=dim,
        logit_scale=scale,
        # SigLIP's. A softmax over candidates cancels it; it gives the probability of "none of
        # these".
        logit_bias=logits.get("logit_bias", 0.0),
        weights=_digest(files, text, folder),
        revision=repository.commit_of(found_in),
    )
    return Backbone(
        spec=spec,
        trunk=TorchTrunk({name: value.to(device) for name, value in trunk.items()}, vision),
        tail={name: value.to(device) for name, value in tail.items()},
        text=text,
        templates=card.templates or tuple(family["templates"]),
        label_cache=LabelCache.of_user(),
        former_weights=partial(_former_digest, folder, files),
    )


def _folder(name: str) -> Path:
    """The model's folder: a local one, else its folder in the hub's cache."""
    if Path(name).is_dir():
        return Path(name)
    asked = repository.parse(name)
    if asked is None:
        raise ModelError(f"There is no folder {name!r}, and no model of that name on the hub.")
    return repository.fetch(asked)


# ------------------------------------------------------------------ what the configuration says


def _family(name: str, folder: Path) -> tuple[dict[str, Any], Any]:
    """The table of the model's family, and its configuration including defaults."""
    config = _read_json(name, folder / "config.json")
    if config is not None:
        layout.check_type(name, config)
    if config is None or "model_type" not in config:  # of timm, without readable weights
        raise layout.unreadable(name, layout.files_in(folder), config)
    with _quiet():
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig

        try:
            # Hub files often omit defaults, which transformers fills in.
            table = layout.tables()[config["model_type"]]
            return table, AutoConfig.from_pretrained(folder, **_LOCAL)
        except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
            raise ModelError(f"The config.json of {name} cannot be used: {error}") from error


def _vision(
    name: str, family: Mapping[str, Any], config: Any, tail_blocks: int, prep: Preprocess
) -> TailSpec:
    """The architecture of the blocks; anything unusual is refused."""
    vision = _part(family, config)
    for key, value in family["require"].items():
        if getattr(vision, key, value) != value:
            raise _unusual(name, key, getattr(vision, key), value)
    gated = bool(getattr(vision, "use_gated_mlp", False))
    if gated and vision.hidden_act != "silu":
        raise _unusual(name, "hidden_act", vision.hidden_act, "silu in a gated MLP")
    swiglu = gated or bool(getattr(vision, "use_swiglu_ffn", False))
    activation: Activation | None = "silu" if swiglu else _ACTIVATIONS.get(vision.hidden_act)
    if activation is None:
        raise _unusual(name, "hidden_act", vision.hidden_act, " or ".join(_ACTIVATIONS))
    for key in ("image_size", "patch_size"):
        if not isinstance(getattr(vision, key), int):
            raise _unusual(name, key, getattr(vision, key), "one whole number")
    if vision.num_attention_heads < 1 or vision.hidden_size % vision.num_attention_heads:
        raise _unusual(name, "num_attention_heads", vision.num_attention_heads, "a divisor")
    blocks = vision.num_hidden_layers
    if tail_blocks > blocks or (tail_blocks == 0 and family["pool"] != "map"):
        raise ModelError(f"{name} has {blocks} blocks; its tail cannot have {tail_blocks}.")
    return TailSpec(
        first=blocks - tail_blocks,
        blocks=tail_blocks,
        width=vision.hidden_size,
        heads=vision.num_attention_heads,
        activation=activation,
        norm_eps=vision.layer_norm_eps,
        pool=family["pool"],
        mlp="swiglu" if swiglu else "plain",
        rotary=(
            Rotary(
                vision.rope_theta, prep.height // vision.patch_size, prep.width // vision.patch_size
            )
            if family["positions"] == "rotary"
            else None
        ),
    )


def _preprocess(name: str, folder: Path, family: Mapping[str, Any], config: Any) -> Preprocess:
    """Preprocessing from the model's file, with defaults from the family's table.

    The tables have the values of the family's publication, with "image_size" for the model's own.
    """
    own = _read_json(name, folder / "preprocessor_config.json")
    if own is None:  # the place in newer versions of transformers
        own = (_read_json(name, folder / "processor_config.json") or {}).get("image_processor", {})
    side = _part(family, config).image_size
    table = json.loads(json.dumps(family["preprocessor"]).replace('"image_size"', json.dumps(side)))
    own = {key: value for key, value in own.items() if value is not None}  # null: default
    if isinstance(own.get("size"), int) and "height" in table["size"]:
        # A single number is a square for families that squash images, else the shortest edge.
        own["size"] = {"height": own["size"], "width": own["size"]}
    prep = preprocess.from_config({**table, **own}, name)
    if family["positions"] == "fixed" and (prep.height, prep.width) != (side, side):
        raise ModelError(
            f"{name} was made for images of {side} by {side} pixels, but its preprocessing "
            f"gives {prep.height} by {prep.width}."
        )
    return prep


def _part(family: Mapping[str, Any], config: Any) -> Any:
    return config if family["vision"] is None else getattr(config, family["vision"])


def _unusual(name: str, key: str, value: object, usual: object) -> ModelError:
    return ModelError(
        f"{name} is unusual and would not be right here: {key} is {value!r}, not {usual}."
    )


# ------------------------------------------------------------------------------------- weights


def _weight_files(name: str, folder: Path) -> list[Path]:
    index = _read_json(name, folder / layout.INDEX)
    names = sorted(set(index["weight_map"].values())) if index else [layout.WEIGHTS]
    files = [folder / Path(file).name for file in names]  # .name: an index cannot point elsewhere
    missing = [file.name for file in files if not file.is_file()]
    if missing and index:
        raise ModelError(
            f"{name} is not whole: {_some(missing)} of its {len(files)} weight files is missing. "
            "Copy or fetch it again."
        )
    if missing:
        config = _read_json(name, folder / "config.json")
        raise layout.unreadable(name, layout.files_in(folder), config)
    return files


def _named(
    name: str, family: Mapping[str, Any], spec: TailSpec, files: list[Path]
) -> dict[str, tuple[Path, str]]:
    """File of each canonical weight, and its name there."""
    found: dict[str, tuple[Path, str]] = {}
    for file in files:
        try:
            hub_names = _names_in(file)
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
            + (f" Missing: {_some(lacks)}." if lacks else "")
            + (f" Not understood: {_some(extra)}." if extra else "")
        )
    return found


def _names_in(file: Path) -> list[str]:
    with safetensors.safe_open(file, framework="pt") as weights:
        return list(weights.keys())


def _weights(
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


def _digest(weight_files: list[Path], text: TextEncoder | None, folder: Path) -> str:
    """Digest of everything that determines embeddings: weights and the tokeniser's behaviour.

    Weights by name and value, whatever their files. The tokeniser by the ids of a few texts: its
    files also have irrelevant fields, such as their origin.
    """
    digest = hashlib.sha256(b"2")
    places = {name: file for file in weight_files for name in _names_in(file)}
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


def _former_digest(folder: Path, weight_files: list[Path]) -> str:
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


# ---------------------------------------------------------------------------------------- text


def _text(
    name: str, folder: Path, family: Mapping[str, Any], config: Any, dim: int, device: str
) -> tuple[TextEncoder | None, float]:
    """The text encoder, and its logit scale if that is not among the weights."""
    table = family["text"]
    if table is None:
        return None, 1.0
    if table == "embedded":  # an image tower with the embedded model's text encoder
        text, scale = embedded.text_side(folder)
        return (None, 1.0) if text is None else (text, scale)
    return _tower(name, folder, table, config, dim, device), 1.0


def _tower(
    name: str, folder: Path, table: Mapping[str, Any], config: Any, dim: int, device: str
) -> HubText:
    if not any((folder / file).is_file() for file in _VOCABULARIES):
        raise ModelError(f"{name} has no tokeniser: none of {', '.join(_VOCABULARIES)}.")
    # A tower that exists only within the whole model is called by name.
    call = table.get("call", "__call__")
    shape = config if "call" in table else config.text_config
    if call == "__call__" and hasattr(
        config, "projection_dim"
    ):  # CLIP's, since the text configuration's is often wrong
        shape.projection_dim = config.projection_dim
    with _quiet():
        import transformers

        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_LOCAL)
            tower, report = getattr(transformers, table["tower"]).from_pretrained(
                folder,
                config=shape,
                local_files_only=True,
                use_safetensors=True,  # other formats can run code
                dtype=torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
            )
        except ImportError as error:
            needed = " ".join(str(error).split())
            if "sentencepiece" in needed.lower():
                needed = "sentencepiece: pip install -c constraints.txt '.[siglip]'"
            raise ModelError(f"The tokeniser of {name} needs another package: {needed}") from error
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(f"The text side of {name} cannot be loaded: {error}") from error
    if report["missing_keys"] or report["mismatched_keys"]:
        absent = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
        raise ModelError(f"The text side of {name} is incomplete: {_some(absent)}.")
    for part in ("vision_model", "visual_projection") if "call" in table else ():
        delattr(tower, part)
    text = HubText(
        tower.eval().requires_grad_(False).to(device),
        tokenizer,
        call=call,
        output=table["output"],
        length=config.text_config.max_position_embeddings,
        pad=table["pad"],
        mask=table["mask"],
        lower=table["lower"],
    )
    if text(["a"]).shape != (1, dim):
        raise ModelError(f"The text side of {name} has not the {dim} dimensions of its images.")
    return text


_VOCABULARIES = [
    "tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
]  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress bars and load reports of transformers."""
    import transformers.utils

    logging: Any = transformers.utils.logging  # it has no types

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _read_json(name: str, file: Path) -> dict[str, Any] | None:
    """Read a JSON file; None if there is none."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file.name} of {name} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file.name} of {name} does not hold an object.")
    return values


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
