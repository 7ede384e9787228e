"""What every codec promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.tiny_tail import (
    ON_TOKENS,
    TOKENS,
    WIDTH,
    any_tokens,
    codec,
    params,
    random_tokens,
    spec,
)
from torch import Tensor

from anytimecl.codec import CODECS, DEFAULT, make_codec
from anytimecl.codec._record import IDS
from anytimecl.errors import ModelError, StoreError
from anytimecl.tail import TailInput, embed, first
from anytimecl.testing import check_codec

EVERY = {name: codec(name) for name in ON_TOKENS}


def parts(decoded: Tensor | TailInput) -> list[Tensor]:
    """The tensors of what a codec gives back, whatever the form."""
    if isinstance(decoded, Tensor):
        return [decoded]
    assert decoded.tokens.coefficients is not None
    return [decoded.cls, decoded.tokens.parts, decoded.tokens.coefficients]


def test_the_registry_names_every_codec() -> None:
    assert set(CODECS) == {*ON_TOKENS, "image"}
    assert set(IDS) - set(CODECS) == {"vq", "pca-dataset"}  # of the lab
    assert DEFAULT in CODECS
    for name in CODECS:
        made = make_codec(name, spec(), params())
        assert made.name == name
        assert made.needs_image == (name == "image")
    with pytest.raises(ModelError, match=r"no codec 'jpeg'.*attention-pca"):
        make_codec("jpeg", spec(), params())


@pytest.mark.parametrize("name", ON_TOKENS)
@given(tokens=any_tokens())
@settings(max_examples=20, deadline=None)
def test_any_finite_tokens_come_back_finite(name: str, tokens: Tensor) -> None:
    decoded = EVERY[name].decode([EVERY[name].encode(tokens)])
    assert all(part.isfinite().all() and part.dtype == torch.float32 for part in parts(decoded))


@pytest.mark.parametrize("name", ON_TOKENS)
@given(one=any_tokens(), others=st.lists(any_tokens(), max_size=3))
@settings(max_examples=20, deadline=None)
def test_the_first_of_a_batch_is_what_it_is_by_itself(
    name: str, one: Tensor, others: list[Tensor]
) -> None:
    alone = EVERY[name].decode([EVERY[name].encode(one)])
    beside = first(EVERY[name].decode([EVERY[name].encode(each) for each in (one, *others)]))
    for mine, theirs in zip(parts(first(alone)), parts(beside), strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        seen = [embed(params(), spec().tail, each) for each in (alone, first(alone), beside)]
    for again in seen[1:]:
        torch.testing.assert_close(again, seen[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ON_TOKENS)
def test_shapes(name: str) -> None:
    records = [EVERY[name].encode(tokens) for tokens in random_tokens(1, images=3)]
    for some in (records, records[:1], []):
        decoded = EVERY[name].decode(some, device="cpu")
        if isinstance(decoded, Tensor):
            assert decoded.shape == (len(some), TOKENS, WIDTH)
        else:
            assert decoded.cls.shape == (len(some), WIDTH)
            parts_of, coefficients = decoded.tokens
            assert coefficients is not None
            assert parts_of.shape == (len(some), coefficients.shape[2], WIDTH)
            assert coefficients.shape[:2] == (len(some), TOKENS)
        assert embed(params(), spec().tail, decoded).shape == (len(some), 24)


@pytest.mark.parametrize("name", ON_TOKENS)
def test_every_codec_keeps_what_is_promised(name: str) -> None:
    check_codec(EVERY[name], spec(), params())
    tokens = random_tokens(3).requires_grad_()
    first = EVERY[name].encode(tokens)
    assert first == codec(name).encode(tokens)
    assert not any(part.requires_grad for part in parts(EVERY[name].decode([first])))
    ones = EVERY[name].encode(torch.ones(TOKENS, WIDTH))  # of another rank, where there is one
    together = embed(params(), spec().tail, EVERY[name].decode([first, ones]))
    alone = [embed(params(), spec().tail, EVERY[name].decode([each])) for each in (first, ones)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ON_TOKENS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_no_damaged_record_is_decoded(name: str, data: st.DataObject) -> None:
    whole = EVERY[name].encode(random_tokens(4))
    if data.draw(st.booleans()):
        record = bytearray(whole)
        bit = data.draw(st.integers(0, 8 * len(record) - 1))
        record[bit // 8] ^= 1 << bit % 8
    else:
        record = bytearray(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(StoreError, match="damaged"):
        EVERY[name].decode([whole, bytes(record)])


@pytest.mark.parametrize("name", ON_TOKENS)
def test_foreign_records_are_refused(name: str) -> None:
    other = "tokens-fp16" if name != "tokens-fp16" else "tokens-fp32"
    with pytest.raises(StoreError, match=f"written by the codec {other}"):
        EVERY[name].decode([EVERY[other].encode(random_tokens())])
    longer = make_codec(other, spec(tokens=TOKENS + 1), params())
    record = longer.encode(torch.zeros(TOKENS + 1, WIDTH))
    with pytest.raises(StoreError, match="18 tokens"):
        EVERY[other].decode([record])


@pytest.mark.parametrize("name", ON_TOKENS)
def test_tokens_that_cannot_be_stored_are_refused(name: str) -> None:
    for wrong in (float("nan"), float("inf"), float("-inf")):
        tokens = random_tokens()
        tokens[5, 7] = wrong
        with pytest.raises(ModelError, match="not finite"):
            EVERY[name].encode(tokens)
    for shape in ((1, TOKENS, WIDTH), (TOKENS, WIDTH - 1), (TOKENS + 1, WIDTH)):
        with pytest.raises(ModelError, match="17 of width 32"):
            EVERY[name].encode(torch.zeros(shape))


@pytest.mark.parametrize("name", ["attention-pca", "pca-image-cls", "pca-image-cls-int8"])
@pytest.mark.parametrize("tail", [{"blocks": 2}, {"pool": "map"}])
def test_a_tail_of_another_shape_is_refused_with_the_way_out(name: str, tail: dict) -> None:
    with pytest.raises(ModelError, match="tokens-fp16"):
        make_codec(name, spec(**tail), params())
    assert make_codec("tokens-fp16", spec(**tail), params())
