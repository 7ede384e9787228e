"""Full tokens: exact in 32 bits, within the stated error in 16."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from tests.codec.tiny_tail import any_tokens, codec, params, random_tokens, spec
from torch import Tensor

from anytimecl.codec import TokensCodec, TokensConfig
from anytimecl.tail import embed

HALF, FULL = codec("tokens-fp16"), codec("tokens-fp32")


@given(any_tokens())
@settings(max_examples=50, deadline=None)
def test_32_bits_are_exact(tokens: Tensor) -> None:
    assert torch.equal(FULL.decode([FULL.encode(tokens)])[0], tokens)


@given(any_tokens())
@settings(max_examples=50, deadline=None)
def test_16_bits_are_within_the_stated_error(tokens: Tensor) -> None:
    back = HALF.decode([HALF.encode(tokens)])[0].double()
    largest = tokens.double().abs().max()
    # The last term: below it float32 itself has no numbers between.
    assert (back - tokens.double()).abs().max() <= largest * 2**-11 + 2.0**-149


def test_exact_where_fp16_is() -> None:
    tokens = random_tokens().half().float()
    assert torch.equal(HALF.decode([HALF.encode(tokens)])[0], tokens)


def test_the_tail_hardly_notices_16_bits() -> None:
    tokens = random_tokens(images=4)
    back = HALF.decode([HALF.encode(image) for image in tokens])
    wanted = embed(params(), spec().tail, tokens)
    torch.testing.assert_close(embed(params(), spec().tail, back), wanted, rtol=0, atol=0.02)


def test_sizes() -> None:
    assert len(FULL.encode(random_tokens())) == 17 * 32 * 4 + 12
    assert len(HALF.encode(random_tokens())) == 17 * 32 * 2 + 12
    with pytest.raises(ValueError, match="16 or 32"):
        TokensCodec(spec(), TokensConfig(bits=8))
