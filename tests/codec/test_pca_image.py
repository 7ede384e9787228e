"""The paper's codecs beside scikit-learn and beside the paper's formulas, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from sklearn.decomposition import PCA
from tests.codec.tiny_tail import (
    HEADS,
    TOKENS,
    WIDTH,
    any_tokens,
    codec,
    params,
    random_tokens,
    spec,
)
from torch import Tensor

from anytimecl.codec import PcaImage, PcaImageConfig, make_codec
from anytimecl.errors import PartError

PLAIN, WEIGHTED, INT8 = (
    codec(name) for name in ("pca-image", "pca-image-cls", "pca-image-cls-int8")
)


def rebuilt(values: np.ndarray, components: int = 5) -> np.ndarray:
    pca = PCA(components, svd_solver="full").fit(values.astype(np.float64))
    return pca.inverse_transform(pca.transform(values.astype(np.float64)))


def norm(x: Tensor) -> Tensor:
    gain, shift = (params()[f"layers.2.layer_norm1.{part}"] for part in ("weight", "bias"))
    return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * gain + shift


def literal(tokens: Tensor) -> Tensor:
    """Products of the normalised class token with each normalised patch, as printed."""
    return torch.stack([norm(tokens[0]) @ norm(patch) for patch in tokens[1:]])


def probabilities(tokens: Tensor) -> Tensor:
    """How the class token attends to each patch, mean over heads; itself among the keys."""
    block = {n.removeprefix("layers.2.self_attn."): v for n, v in params().items()}
    size = WIDTH // HEADS
    query = (block["q_proj.weight"] @ norm(tokens[0]) + block["q_proj.bias"]).view(HEADS, size)
    keys = [block["k_proj.weight"] @ norm(t) + block["k_proj.bias"] for t in tokens]
    heads = []
    for head in range(HEADS):
        own = torch.stack([query[head] @ key.view(HEADS, size)[head] for key in keys])
        heads.append((own / size**0.5).softmax(0)[1:])
    return torch.stack(heads).mean(0)


def weighted(tokens: Tensor, likeness: Callable[[Tensor], Tensor] = probabilities) -> Tensor:
    """`[C; S P]` with `S` the softmax of a likeness, one patch after the other."""
    powers = likeness(tokens).exp()
    share = powers / powers.sum()
    return torch.stack([tokens[0], *(s * p for s, p in zip(share, tokens[1:], strict=True))])


def test_is_scikit_learns() -> None:
    tokens = random_tokens(images=3)
    back = PLAIN.decode([PLAIN.encode(image) for image in tokens])
    for got, image in zip(back.numpy(), tokens.numpy(), strict=True):
        np.testing.assert_allclose(got, rebuilt(image), atol=1e-4)


def test_cls_weight_is_that_of_the_papers_figures() -> None:
    tokens = random_tokens(1)
    got = WEIGHTED.decode([WEIGHTED.encode(tokens)])[0].numpy()
    np.testing.assert_allclose(got, rebuilt(weighted(tokens).numpy()), atol=1e-4)


def test_weights_are_near_uniform_beside_a_class_token_at_weight_1() -> None:
    tokens = random_tokens(1)
    patches = TOKENS - 1
    weights = WEIGHTED._weights(tokens.double())
    assert float(weights.sum()) == pytest.approx(1)
    assert 1 / patches / np.e < float(weights.min()) <= float(weights.max()) < np.e / patches
    printed = PcaImage(spec(), params(), PcaImageConfig(cls_weight="literal"))
    assert float(printed._weights(tokens.double()).max()) > 0.5  # one patch has most of it


def test_the_printed_formula_is_kept_as_a_variant() -> None:
    tokens = random_tokens(1)
    printed = PcaImage(spec(), params(), PcaImageConfig(cls_weight="literal"))
    record = printed.encode(tokens)
    got = printed.decode([record])[0].numpy()
    np.testing.assert_allclose(got, rebuilt(weighted(tokens, literal).numpy()), atol=1e-4)
    assert torch.equal(WEIGHTED.decode([record]), printed.decode([record]))  # records are alike


def test_int8_is_the_papers() -> None:
    """Each vector to 0..255 between its lowest and highest value, cut off, and back."""
    tokens = random_tokens(2)
    values = weighted(tokens).numpy().astype(np.float64)
    pca = PCA(5, svd_solver="full").fit(values)
    coefficients = pca.transform(values)

    def eight_bits(vector: np.ndarray) -> np.ndarray:
        low, high = vector.min(), vector.max()
        return (255 * (vector - low) / (high - low)).astype(np.uint8) / 255 * (high - low) + low

    # A component's sign is free, and cutting off depends on it: try all.
    got = INT8.decode([INT8.encode(tokens)])[0].numpy()
    nearest = min(
        np.abs(
            np.array([eight_bits(row) for row in coefficients * signs])
            @ np.array([eight_bits(row) for row in pca.components_ * signs[:, None]])
            + eight_bits(pca.mean_)
            - got
        ).max()
        for signs in np.array(np.meshgrid(*[[-1, 1]] * 5)).reshape(5, -1).T
    )
    assert nearest < 1e-3 * np.abs(got).max()


@given(any_tokens())
@settings(max_examples=40, deadline=None)
def test_any_tokens_are_within_the_best_approximation(tokens: Tensor) -> None:
    back = PLAIN.decode([PLAIN.encode(tokens)])[0].double()
    values = tokens.double()
    scale = float(values.abs().max()) or 1.0
    assume(scale < 1e36)  # sums of larger ones leave float32
    strengths = torch.linalg.svdvals((values - values.mean(0)) / scale)
    best = float(strengths[5:].square().sum().sqrt())
    assert float(((back - values) / scale).norm()) <= best + 1e-4


def test_few_dimensions_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(TOKENS, 5, generator=generator) @ torch.randn(5, WIDTH, generator=generator)
    torch.testing.assert_close(PLAIN.decode([PLAIN.encode(flat)])[0], flat, rtol=0, atol=1e-4)


def test_sizes_are_the_papers() -> None:
    """At 50 tokens of width 768 the paper has 19.4 KB, and 5.3 KB with 8 bits."""
    assert len(PLAIN.encode(random_tokens())) == 10 + 4 * (WIDTH + 5 * WIDTH + 5 * TOKENS)
    eight = 10 + (WIDTH + 8) + 5 * (WIDTH + 8) + TOKENS * (5 + 8)
    assert len(INT8.encode(random_tokens())) == eight
    assert (4 * (768 + 5 * 768 + 5 * 50), 6 * (768 + 8) + 50 * 13) == (19432, 5306)
    with pytest.raises(ValueError, match="cls_weight"):
        PcaImage(spec(), params(), PcaImageConfig(int8=True))


@pytest.mark.parametrize("components", [-1, 0, 2.5, True, "5"])
def test_no_memory_is_made_that_could_not_be_read(components: Any) -> None:
    """Records of -1 components were stored, and never decoded."""
    choice = {"name": "pca-image", "options": {"components": components}}
    with pytest.raises(PartError, match="Components are a whole number from 1"):
        make_codec(choice, spec(), params())
