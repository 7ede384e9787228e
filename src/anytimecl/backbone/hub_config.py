"""Architecture and preprocessing, from the files of a model in the Hugging Face layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from anytimecl.backbone import layout, preprocess
from anytimecl.backbone.spec import Preprocess, Rotary, TailSpec
from anytimecl.errors import ModelError

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]
_ACTIVATIONS: dict[str, Activation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
LOCAL: Any = {"local_files_only": True, "trust_remote_code": False}  # no network, no remote code


def family_of(name: str, folder: Path) -> tuple[dict[str, Any], Any]:
    """The table of the model's family, and its configuration including defaults."""
    config = read_json(name, folder / "config.json")
    if config is not None:
        layout.check_type(name, config)
    if config is None or "model_type" not in config:  # of timm, without readable weights
        raise layout.unreadable(name, layout.files_in(folder), config)
    with quiet():
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig

        try:
            # Hub files often omit defaults, which transformers fills in.
            table = layout.tables()[config["model_type"]]
            return table, AutoConfig.from_pretrained(folder, **LOCAL)
        except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
            raise ModelError(f"The config.json of {name} cannot be used: {error}") from error


def vision_of(
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


def preprocess_of(name: str, folder: Path, family: Mapping[str, Any], config: Any) -> Preprocess:
    """Preprocessing from the model's file, with defaults from the family's table.

    The tables have the values of the family's publication, with "image_size" for the model's own.
    """
    own = read_json(name, folder / "preprocessor_config.json")
    if own is None:  # the place in newer versions of transformers
        own = (read_json(name, folder / "processor_config.json") or {}).get("image_processor", {})
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


@contextmanager
def quiet() -> Iterator[None]:
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


def read_json(name: str, file: Path) -> dict[str, Any] | None:
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
