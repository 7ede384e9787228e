"""A tiny tail for the tests of codecs, and tokens to give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.codec import Codec, make_codec

torch.set_num_threads(1)  # matrices this small only lose by sharing

TOKENS, WIDTH, HEADS, DIM = 17, 32, 4, 24
_PIXELS = Preprocess(32, 32, "shortest", 32, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

ON_TOKENS = (
    "tokens-fp32", "tokens-fp16", "pca-image", "pca-image-cls",
    "pca-image-cls-int8", "attention-pca",
)  # fmt: skip


def spec(*, tokens: int = TOKENS, weights: str = "tiny", **tail: Any) -> Spec:
    """The description of a model with a tail of one block."""
    shape = {"first": 2, "blocks": 1, "width": WIDTH, "heads": HEADS, **tail}
    its_tail = TailSpec(activation="quick_gelu", norm_eps=1e-5, **shape)
    return Spec("tiny", "clip", _PIXELS, its_tail, tokens, DIM, 100.0, 0.0, weights)


def params(seed: int = 0) -> dict[str, Tensor]:
    """Every parameter of the tail, all random: one in another's place changes the result."""
    generator = torch.Generator().manual_seed(seed)
    at = "layers.2."
    shapes: dict[str, tuple[int, ...]] = {"visual_projection.weight": (DIM, WIDTH)}
    for name in (f"{at}layer_norm1", f"{at}layer_norm2", "post_layernorm"):
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    for name in "qkv":
        shapes[f"{at}self_attn.{name}_proj.weight"] = (WIDTH, WIDTH)
    for name, out, into in (("fc1", 64, WIDTH), ("fc2", WIDTH, 64)):
        shapes |= {f"{at}mlp.{name}.weight": (out, into), f"{at}mlp.{name}.bias": (out,)}
    shapes[f"{at}self_attn.out_proj.weight"] = (WIDTH, WIDTH)
    for name in ("q", "k", "v", "out"):
        shapes[f"{at}self_attn.{name}_proj.bias"] = (WIDTH,)
    values = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {
        name: 1 + 0.2 * value if "norm" in name and "weight" in name else 0.3 * value
        for name, value in values.items()
    }


def random_tokens(seed: int = 0, images: int | None = None) -> Tensor:
    """Tokens of one image or of several, with a common part and entries of unlike size."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1 if images is None else images, TOKENS, WIDTH)
    tokens = torch.randn(shape, generator=generator) + torch.randn(WIDTH, generator=generator)
    tokens = tokens * torch.logspace(-1, 1, WIDTH)
    return tokens[0] if images is None else tokens


def codec(name: str) -> Codec:
    """A codec for the tiny tail."""
    return make_codec(name, spec(), params())


_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def any_tokens(draw: st.DrawFn) -> Tensor:
    """Finite tokens of every kind: huge, tiny, constant, alike, zero, far apart in size."""
    if draw(st.booleans()):  # hypothesis' own idea of difficult numbers
        return torch.from_numpy(draw(arrays(np.float32, (TOKENS, WIDTH), elements=_FLOATS)))
    tokens = random_tokens(draw(st.integers(0, 99)))
    tokens = tokens * 10.0 ** draw(st.integers(-38, 36))
    for row in draw(st.lists(st.integers(0, TOKENS - 1), max_size=4)):
        tokens[row] = draw(_FLOATS)  # a constant token, which has no variance
    for row in draw(st.lists(st.integers(0, TOKENS - 1), max_size=4)):
        tokens[row] = tokens[0]
    if draw(st.booleans()):
        tokens[1:] = tokens[1]
    return tokens
