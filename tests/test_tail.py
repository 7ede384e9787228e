"""The single-query tail is the full block, read at its class token: in output and in gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import model
from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.backbone.trunk import activate, block
from anytimecl.tail import TailInput, Tokens, embed, look, normalise

MODELS = {
    "clip, quick gelu": ("clip", {"hidden_act": "quick_gelu"}),
    "clip, gelu": ("clip", {"hidden_act": "gelu"}),
    "dinov2, layer scale": ("dinov2", {}),
    "dinov2, registers": ("dinov2", {"registers": 2}),
    "dinov2, swiglu": ("dinov2", {"swiglu": True}),
}
ACTIVATIONS = {"clip, quick gelu": "quick_gelu", "clip, gelu": "gelu"}


def full_block(params: dict[str, Tensor], spec: TailSpec, tokens: Tensor) -> Tensor:
    """The reference: every block for every token, then the class token alone."""
    for index in range(spec.first, spec.last + 1):
        tokens = block(params, spec, index, tokens)
    gain, shift = params["post_layernorm.weight"], params["post_layernorm.bias"]
    cls = F.layer_norm(tokens[:, 0], (spec.width,), gain, shift, spec.norm_eps)
    if "visual_projection.weight" in params:
        return cls @ params["visual_projection.weight"].T
    return cls


def siglip_head(params: dict[str, Tensor], spec: TailSpec, tokens: Tensor) -> Tensor:
    """The reference: torch's own attention from the probe to every token, then the MLP."""
    for index in range(spec.first, spec.last + 1):
        tokens = block(params, spec, index, tokens)
    gain, shift = params["post_layernorm.weight"], params["post_layernorm.bias"]
    tokens = F.layer_norm(tokens, (spec.width,), gain, shift, spec.norm_eps)
    at = "head.attention."
    attention = torch.nn.MultiheadAttention(
        spec.width, spec.heads, batch_first=True, dtype=tokens.dtype
    )
    inputs = {
        "in_proj_weight": torch.cat([params[f"{at}{x}_proj.weight"] for x in "qkv"]),
        "in_proj_bias": torch.cat([params[f"{at}{x}_proj.bias"] for x in "qkv"]),
        "out_proj.weight": params[at + "out_proj.weight"],
        "out_proj.bias": params[at + "out_proj.bias"],
    }
    probe = params["head.probe"].expand(len(tokens), 1, spec.width)
    x, _ = torch.func.functional_call(attention, inputs, (probe, tokens, tokens))
    gain, shift = params["head.layernorm.weight"], params["head.layernorm.bias"]
    inner = F.layer_norm(x, (spec.width,), gain, shift, spec.norm_eps)
    inner = F.linear(inner, params["head.mlp.fc1.weight"], params["head.mlp.fc1.bias"])
    inner = activate(spec, inner)
    inner = F.linear(inner, params["head.mlp.fc2.weight"], params["head.mlp.fc2.bias"])
    return (x + inner)[:, 0]


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def both_ways(
    tail: Callable[[dict[str, Tensor]], Tensor], params: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Output, and the gradient of some scalar of it for every parameter."""
    leaves = {name: value.double().requires_grad_() for name, value in params.items()}
    features = tail(leaves)
    scalar = (features * noise(*features.shape, seed=1)).sum()
    found = torch.autograd.grad(scalar, list(leaves.values()), allow_unused=True)
    return features.detach(), dict(zip(leaves, found, strict=True))


def assert_same(
    tail: tuple[Tensor, dict[str, Tensor | None]],
    reference: tuple[Tensor, dict[str, Tensor | None]],
    without: set[str],
) -> None:
    """The same in output and in every gradient.

    A key bias adds the same to every score of a query, so its true gradient is zero: the full
    block finds it up to rounding, the single query has none (`without`).
    """
    torch.testing.assert_close(tail[0], reference[0], rtol=1e-9, atol=1e-9)
    assert {name for name, gradient in tail[1].items() if gradient is None} == without
    for name, expected in reference[1].items():
        assert expected is not None, name
        if name.endswith("k_proj.bias"):
            assert expected.abs().max() < 1e-12, name
        else:
            assert expected.abs().max() > 1e-6, f"{name}: a gradient of zero compares nothing"
        gradient = tail[1][name]
        if gradient is not None:
            torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-9, msg=name)


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_full_block_in_output_and_in_every_gradient(name: str, blocks: int) -> None:
    kind, options = MODELS[name]
    backbone = model(kind, blocks=blocks, **options)
    spec = backbone.spec.tail
    assert spec.blocks == blocks
    assert spec.activation == ACTIVATIONS.get(name, spec.activation)
    tokens = 3 * noise(4, backbone.spec.tokens, spec.width)
    assert_same(
        both_ways(lambda params: embed(params, spec, tokens), backbone.tail),
        both_ways(lambda params: full_block(params, spec, tokens), backbone.tail),
        without={f"layers.{spec.last}.self_attn.k_proj.bias"},
    )


@pytest.mark.parametrize("options", [{}, {"use_gated_mlp": True, "hidden_act": "silu"}])
@pytest.mark.parametrize("blocks", [1, 2])
def test_turned_keys_equal_the_full_block(blocks: int, options: dict[str, object]) -> None:
    backbone = model("dinov3", blocks=blocks, **options)
    spec = backbone.spec.tail
    tokens = 3 * noise(4, backbone.spec.tokens, spec.width)
    assert_same(
        both_ways(lambda params: embed(params, spec, tokens), backbone.tail),
        both_ways(lambda params: full_block(params, spec, tokens), backbone.tail),
        without=set(),
    )


def test_a_bias_of_turned_keys_counts() -> None:
    backbone = model("dinov3", key_bias=True)
    spec = backbone.spec.tail
    tokens = 3 * noise(4, backbone.spec.tokens, spec.width)
    own = both_ways(lambda params: embed(params, spec, tokens), backbone.tail)
    whole = both_ways(lambda params: full_block(params, spec, tokens), backbone.tail)
    torch.testing.assert_close(own, whole, rtol=1e-8, atol=1e-9)
    bias = whole[1][f"layers.{spec.last}.self_attn.k_proj.bias"]
    assert bias is not None
    assert bias.abs().max() > 1e-6


@pytest.mark.parametrize("blocks", [1, 2])
def test_siglips_head_equals_torchs_attention(blocks: int) -> None:
    backbone = model("siglip", blocks=blocks)
    spec = backbone.spec.tail
    tokens = 3 * noise(4, backbone.spec.tokens, spec.width)
    assert_same(
        both_ways(lambda params: embed(params, spec, tokens), backbone.tail),
        both_ways(lambda params: siglip_head(params, spec, tokens), backbone.tail),
        without={"head.attention.k_proj.bias"},
    )


def test_in_single_precision_the_difference_is_rounding() -> None:
    backbone = model()
    tokens = noise(8, backbone.spec.tokens, backbone.spec.tail.width).float()
    one = embed(backbone.tail, backbone.spec.tail, tokens)
    full = full_block(backbone.tail, backbone.spec.tail, tokens)
    assert one.dtype == torch.float32
    torch.testing.assert_close(one, full, rtol=1e-5, atol=1e-5)


def low_rank(own: Tensor, patches: int, rank: int) -> tuple[Tokens, Tokens]:
    """Compressed, and what that stands for, number by number."""
    batch, width = own.shape
    coefficients = noise(batch, patches, rank, seed=2)
    components = noise(batch, rank, width, seed=3)
    mean = noise(batch, width, seed=4)
    whole = torch.stack([own] + patches * [mean], 1)
    for b in range(batch):
        for t in range(patches):
            for r in range(rank):
                whole[b, 1 + t] += coefficients[b, t, r] * components[b, r]
    return Tokens.low_rank(own, mean, components, coefficients), Tokens(whole)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_low_rank_patches_equal_the_patches_multiplied_out(rank: int) -> None:
    backbone = model()
    spec = backbone.spec.tail
    cls = 3 * noise(3, spec.width, seed=5)
    own = normalise(cls, spec.norm_eps)
    parts, tokens = low_rank(own, backbone.spec.tokens - 1, rank)
    seen, dense = TailInput(cls, parts), TailInput(cls, tokens)
    by_parts = both_ways(lambda params: embed(params, spec, seen), backbone.tail)
    whole = both_ways(lambda params: embed(params, spec, dense), backbone.tail)
    torch.testing.assert_close(by_parts[0], whole[0], rtol=1e-10, atol=1e-10)
    for name, gradient in whole[1].items():
        torch.testing.assert_close(by_parts[1][name], gradient, rtol=1e-9, atol=1e-10)


def test_compressed_patches_are_read_without_being_normalised_again() -> None:
    """Exact coefficients of real patches give what the patches themselves give."""
    backbone = model()
    spec = backbone.spec.tail
    tokens = 3 * noise(2, backbone.spec.tokens, spec.width)
    own, patches = normalise(tokens, spec.norm_eps).split([1, tokens.shape[1] - 1], 1)
    mean = patches.mean(1)
    u, s, vh = torch.linalg.svd(patches - mean.unsqueeze(1), full_matrices=False)
    seen = TailInput(tokens[:, 0], Tokens.low_rank(own[:, 0], mean, vh, u * s.unsqueeze(1)))
    params = {name: value.double() for name, value in backbone.tail.items()}
    torch.testing.assert_close(embed(params, spec, seen), full_block(params, spec, tokens))


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_some_of_the_images_give_some_of_the_features(kind: str) -> None:
    backbone = model()
    spec = backbone.spec.tail
    cls = noise(5, spec.width)
    parts, tokens = low_rank(normalise(cls, spec.norm_eps), backbone.spec.tokens - 1, 2)
    seen = TailInput(cls, parts if kind == "low rank" else tokens)
    params = {name: value.double() for name, value in backbone.tail.items()}
    some = embed(params, spec, seen.pick(slice(1, 3)))
    torch.testing.assert_close(some, embed(params, spec, seen)[1:3])


def test_looking_keeps_the_class_token_and_normalises_all() -> None:
    tokens = 5 * noise(2, 4, 8) + 1
    seen = look(tokens, eps=1e-5)
    assert torch.equal(seen.cls, tokens[:, 0])
    spread = (tokens.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    centred = tokens - tokens.mean(-1, keepdim=True)
    torch.testing.assert_close(seen.tokens.parts, centred / spread)


def test_no_images_give_no_features() -> None:
    backbone = model()
    tokens = torch.empty(0, backbone.spec.tokens, backbone.spec.tail.width)
    assert embed(backbone.tail, backbone.spec.tail, tokens).shape == (0, backbone.spec.dim)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_only_the_last_block_reads_compressed_tokens(kind: str) -> None:
    backbone = model(kind, blocks=2)
    spec = backbone.spec.tail
    cls = noise(1, spec.width)
    seen = TailInput(cls, low_rank(cls, backbone.spec.tokens, 1)[0])
    with pytest.raises(AssertionError, match="only the last block"):
        embed(backbone.tail, spec, seen)
