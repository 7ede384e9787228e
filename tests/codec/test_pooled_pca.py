"""The codec of a pooling head, as SigLIP has it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.codec import PooledPca, default_codec, make_codec
from anytimecl.errors import ModelError
from anytimecl.tail import embed

TOKENS, WIDTH, HEADS, HIDDEN = 20, 32, 4, 48


def spec() -> Spec:
    pixels = Preprocess(32, 32, "exact", (32, 32), "bicubic", (0.5,) * 3, (0.5,) * 3)
    tail = TailSpec(3, 0, WIDTH, HEADS, "gelu_tanh", 1e-6, pool="map")
    return Spec("tiny", "siglip", pixels, tail, TOKENS, WIDTH, 100.0, -10.0, "weights")


def head(seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) / shape[-1] ** 0.5

    params = {"head.probe": draw(1, WIDTH)}
    shapes = {f"head.attention.{name}_proj": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    shapes |= {"head.mlp.fc1": (HIDDEN, WIDTH), "head.mlp.fc2": (WIDTH, HIDDEN)}
    for name, (rows, columns) in shapes.items():
        params |= {f"{name}.weight": 2 * draw(rows, columns), f"{name}.bias": draw(rows)}
    for name in ("post_layernorm", "head.layernorm"):
        params |= {f"{name}.weight": 1 + draw(WIDTH), f"{name}.bias": draw(WIDTH)}
    return params


def tokens(images: int = 4, seed: int = 1) -> Tensor:
    """Patches that have something in common, as real ones do."""
    random = torch.Generator().manual_seed(seed)
    shared = torch.randn(images, 3, WIDTH, generator=random)
    shares = torch.randn(images, TOKENS, 3, generator=random)
    return shares @ shared + 0.1 * torch.randn(images, TOKENS, WIDTH, generator=random)


def test_it_is_the_default_of_a_head_alone() -> None:
    assert default_codec(spec()) == "attention-pca"
    assert isinstance(make_codec("attention-pca", spec(), head()), PooledPca)
    one_block = dataclasses.replace(spec().tail, first=2, blocks=1)
    with_block = dataclasses.replace(spec(), tail=one_block)
    assert default_codec(with_block) == "tokens-fp16"
    with pytest.raises(ModelError, match="one block that is read from the class token"):
        make_codec("attention-pca", with_block, head())


def test_features_and_gradients_are_nearly_those_of_the_tokens() -> None:
    codec, given = make_codec("attention-pca", spec(), head()), tokens()
    decoded = codec.decode([codec.encode(one) for one in given])
    found = {}
    for name, seen in (("whole", given), ("stored", decoded)):
        params = {key: value.clone().requires_grad_() for key, value in head().items()}
        features = embed(params, spec().tail, seen)
        towards = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
        # A key bias has no gradient.
        trained = [
            key for key in params if spec().tail.trains(key) and not key.endswith("k_proj.bias")
        ]
        loss = (features * towards).sum()
        gradients = torch.autograd.grad(loss, [params[key] for key in trained])
        found[name] = features, dict(zip(trained, gradients, strict=True))
    (whole, exact), (stored, near) = found["whole"], found["stored"]
    assert torch.cosine_similarity(whole, stored).min() > 0.999
    for key, gradient in exact.items():
        assert torch.cosine_similarity(gradient.flatten(), near[key].flatten(), 0) > 0.95, key


def test_a_batch_is_its_images_one_by_one_and_order_is_no_matter() -> None:
    codec, given = make_codec("attention-pca", spec(), head()), tokens()
    records = [codec.encode(one) for one in given] + [codec.encode(torch.ones(TOKENS, WIDTH))]
    together = embed(head(), spec().tail, codec.decode(records))
    alone = [embed(head(), spec().tail, codec.decode([record])) for record in records]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
    turned = codec.decode([codec.encode(given[0].flip(0))])
    torch.testing.assert_close(
        embed(head(), spec().tail, turned), alone[0], rtol=0, atol=0.05 * float(alone[0].std())
    )
