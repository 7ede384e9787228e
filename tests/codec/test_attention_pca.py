"""Our codec beside slow, obvious references."""

from __future__ import annotations

import io
import itertools
import zipfile
from pathlib import Path

import PIL.Image
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
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

from anytimecl.backbone import Backbone
from anytimecl.codec import AttentionPca, AttentionPcaConfig
from anytimecl.codec import _lowrank as lowrank
from anytimecl.codec.attention_pca import _HEAD
from anytimecl.tail import TailInput, Tokens, embed, look, normalise

TAIL = spec().tail


def seen(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Class token and patches after the norm without its affine."""
    normed = normalise(tokens, TAIL.norm_eps)
    return normed[0], normed[1:]


def looked_at(seed: int = 0) -> lowrank.Look:
    return lowrank.look_at(lowrank.frozen(params(), TAIL), HEADS, *seen(random_tokens(seed)))


def dense(decoded: TailInput) -> TailInput:
    """With every token rebuilt."""
    parts, coefficients = decoded.tokens
    assert coefficients is not None
    return TailInput(decoded.cls, Tokens(coefficients @ parts))


def test_attention_is_that_of_the_block() -> None:
    """The reference: queries and keys of every token, as transformers compute them."""
    tokens, weights = random_tokens(), params()
    at = "layers.2."
    gain, shift = weights[at + "layer_norm1.weight"], weights[at + "layer_norm1.bias"]
    normed = F.layer_norm(tokens, (WIDTH,), gain, shift, TAIL.norm_eps)
    query, key = (
        F.linear(normed, weights[f"{at}self_attn.{x}.weight"], weights[f"{at}self_attn.{x}.bias"])
        .view(TOKENS, HEADS, -1)
        .transpose(0, 1)
        for x in ("q_proj", "k_proj")
    )
    attention = (query @ key.mT * key.shape[-1] ** -0.5).softmax(-1)[:, 0, 1:]
    torch.testing.assert_close(looked_at().attention, attention)
    mean = attention.mean(0)
    wanted = mean + 0.1 * mean.mean()
    torch.testing.assert_close(looked_at().weights, wanted / wanted.sum())


def test_components_are_those_of_a_singular_value_decomposition() -> None:
    """The reference: patches and their scores side by side, weighted, decomposed."""
    look = looked_at()
    root = look.weights.sqrt()[:, None]
    side_by_side = torch.cat([look.patches, lowrank._SCORES**0.5 * look.scores.T], dim=1)
    centred = root * (side_by_side - look.weights @ side_by_side)
    left, _, _ = torch.linalg.svd(centred.double(), full_matrices=False)
    for rank in (1, 3, 6):
        got = root * lowrank.directions(look, rank)
        wanted = left[:, :rank]
        torch.testing.assert_close(got.T @ got, torch.eye(rank), rtol=0, atol=1e-4)
        torch.testing.assert_close((got @ got.T).double(), wanted @ wanted.T, rtol=0, atol=1e-4)
        rebuilt = (
            root
            * lowrank.directions(look, rank)
            @ lowrank.components_of(look, lowrank.directions(look, rank))
        )
        mean = look.weights @ look.patches
        projected = wanted @ (wanted.T @ (root * (look.patches - mean)).double())
        torch.testing.assert_close(rebuilt.double(), projected, rtol=0, atol=1e-3)


def test_many_patches_get_the_same_directions_by_iteration() -> None:
    generator = torch.Generator().manual_seed(0)
    strengths = torch.logspace(0, -3, 200)
    basis = torch.linalg.qr(torch.randn(200, 200, generator=generator)).Q
    gram = (basis * strengths) @ basis.T
    got = lowrank._top(gram, 12)
    assert got.shape == (200, 12)
    # Not the same vectors, where strengths are this much alike, but nearly as much of the energy.
    best = float(strengths[:12].sum())
    assert float((got.T @ gram @ got).trace()) == pytest.approx(best, rel=0.02)
    torch.testing.assert_close(got.T @ got, torch.eye(12), rtol=0, atol=1e-4)


def test_the_fit_is_least_squares() -> None:
    """The reference: every patch and every head's mix as a weighted equation, solved by QR."""
    look = looked_at()
    coefficients = lowrank.directions(look, 4).round()
    design = torch.cat([torch.ones(TOKENS - 1, 1), coefficients], dim=1)
    root, scale = look.weights.sqrt()[:, None], (lowrank._MIXES / HEADS) ** 0.5
    rows = torch.cat([root * design, scale * look.attention @ design])
    wanted = torch.cat([root * look.patches, scale * look.attention @ look.patches])
    solution = torch.linalg.lstsq(rows, wanted).solution
    torch.testing.assert_close(lowrank.fit(look, coefficients), solution, rtol=1e-3, atol=1e-3)


def test_with_all_components_and_fine_steps_nothing_is_lost() -> None:
    fine = AttentionPca(spec(), params(), AttentionPcaConfig(10**6, step=0.002, components=16))
    tokens = random_tokens(images=5)
    decoded = fine.decode([fine.encode(image) for image in tokens])
    torch.testing.assert_close(decoded.cls, tokens[:, 0], rtol=0, atol=0.02)
    wanted = embed(params(), TAIL, tokens)
    torch.testing.assert_close(embed(params(), TAIL, decoded), wanted, rtol=0, atol=0.01)
    # The patches are all there, in the order of their first coefficient.
    for rebuilt, image in zip(dense(decoded).tokens.parts[:, 1:], tokens, strict=True):
        patches = seen(image)[1]
        distances = torch.cdist(rebuilt, patches)
        assert distances.min(1).values.max() < 0.1
        assert sorted(distances.argmin(1).tolist()) == list(range(TOKENS - 1))


def test_the_compressed_form_is_the_rebuilt_one_in_output_and_gradient() -> None:
    made = codec("attention-pca")
    decoded = made.decode([made.encode(image) for image in random_tokens(images=3)])
    results = []
    for form in (decoded, dense(decoded)):
        weights = {name: value.clone().requires_grad_() for name, value in params().items()}
        output = embed(weights, TAIL, form)
        output.square().sum().backward()
        results.append([output.detach(), *(weights[name].grad for name in sorted(weights))])
    for got, wanted in zip(*results, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def test_more_bytes_are_better_and_no_record_is_over_budget() -> None:
    tokens = random_tokens(images=6)
    wanted = embed(params(), TAIL, tokens)
    errors = []
    for budget in (100, 200, 400, 800):
        made = AttentionPca(spec(), params(), AttentionPcaConfig(budget, step=0.005))
        records = [made.encode(image) for image in tokens]
        assert max(map(len, records)) <= budget
        assert min(map(len, records)) > 0.5 * budget  # a budget is there to be used
        got = embed(params(), TAIL, made.decode(records))
        errors.append(float((1 - torch.cosine_similarity(got, wanted)).mean()))
    assert all(more < less / 2 for less, more in itertools.pairwise(errors))


@given(any_tokens(), st.sampled_from([100, 4500]))
@settings(max_examples=40, deadline=None)
def test_any_tokens_fit_into_any_budget(tokens: Tensor, budget: int) -> None:
    made = AttentionPca(spec(), params(), AttentionPcaConfig(budget))
    assert len(made.encode(tokens)) <= budget


@given(any_tokens())
@settings(max_examples=40, deadline=None)
def test_any_class_token_is_within_half_a_step(tokens: Tensor) -> None:
    made = AttentionPca(spec(), params())
    record = made.encode(tokens)
    _, step, *_ = _HEAD.unpack_from(record, 6)
    size = float(tokens[0].double().square().mean().sqrt()) or 1.0
    # As stated: so small a tail never meets the budget.
    assert step <= max(0.04 * size, 1e-30) * (1 + 1e-6)
    error = (made.decode([record]).cls[0].double() - tokens[0].double()).abs().max()
    assert error <= step * (0.5 + 1e-4) + 2.0**-149


@given(any_tokens())
@settings(max_examples=40, deadline=None)
def test_any_patches_give_nearly_the_same_mean(tokens: Tensor) -> None:
    """What attention reads first of all is the weighted mean, and that is stored the finest."""
    made = AttentionPca(spec(), params())
    rebuilt = dense(made.decode([made.encode(tokens)])).tokens.parts[0, 1:]
    own, *_ = normed = made._normalised(tokens)
    normed = normed[1:]
    look = lowrank.look_at(lowrank.frozen(params(), TAIL), HEADS, own, normed)
    assert rebuilt.abs().max() <= 3 * WIDTH**0.5
    spread = (look.weights[:, None] * (normed - look.weights @ normed).square()).sum().sqrt()
    middle = (rebuilt.mean(0) - normed.mean(0)).norm()
    assert middle <= 3 * float(spread) + 0.1


def test_patches_that_are_alike_take_no_components() -> None:
    tokens = random_tokens()
    tokens[1:] = tokens[1]
    decoded = codec("attention-pca").decode([codec("attention-pca").encode(tokens)])
    assert decoded.tokens.parts.shape == (1, 2, WIDTH)  # the class token and the mean
    torch.testing.assert_close(decoded.tokens.parts[0, 1], seen(tokens)[1][0], rtol=0, atol=0.01)
    wanted = embed(params(), TAIL, tokens[None])
    torch.testing.assert_close(embed(params(), TAIL, decoded), wanted, rtol=0.05, atol=0.05)


def test_the_order_of_patches_is_not_stored() -> None:
    """Up to the last digits of a sum in another order, and those may round elsewhere."""
    made, tokens = codec("attention-pca"), random_tokens()
    shuffled = torch.cat([tokens[:1], tokens[1:].flip(0)])
    one, other = (made.decode([made.encode(image)]) for image in (tokens, shuffled))
    got, wanted = (embed(params(), TAIL, form) for form in (one, other))
    assert torch.cosine_similarity(got, wanted) > 0.9999


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="budget of 99 bytes is too small"):
        AttentionPca(spec(), params(), AttentionPcaConfig(budget=99))
    with pytest.raises(ValueError, match="0 to 255, not 300"):
        AttentionPca(spec(), params(), AttentionPcaConfig(components=300))
    with pytest.raises(ValueError, match="too fine"):
        AttentionPca(spec(), params(), AttentionPcaConfig(step=1e-6))


def test_real_images_in_at_most_4500_bytes(embedded: Backbone, shared_data: Path) -> None:
    """Embeddings within a thousandth of a cosine, also after the weights have moved."""
    images = []
    for name in ("pets", "cifar100", "resisc12"):
        with zipfile.ZipFile(shared_data / f"{name}.zip") as file:
            names = sorted(n for n in file.namelist() if n.startswith("train/") and n[-1] != "/")
            for member in names[:: len(names) // 4][:4]:
                images.append(PIL.Image.open(io.BytesIO(file.read(member))).convert("RGB"))
    tokens = embedded.encode(images)
    made = AttentionPca(embedded.spec, embedded.tail)
    records = [made.encode(image) for image in tokens]
    assert max(map(len, records)) <= 4500
    decoded = made.decode(records)
    generator = torch.Generator().manual_seed(0)
    moved = {
        name: value + 0.1 * value.std() * torch.randn(value.shape, generator=generator)
        for name, value in embedded.tail.items()
    }
    full = look(tokens, embedded.spec.tail.norm_eps)
    for weights in (embedded.tail, moved):
        got, wanted = (embed(weights, embedded.spec.tail, form) for form in (decoded, full))
        assert float((1 - torch.cosine_similarity(got, wanted)).mean()) < 1e-3
