"""The image codec keeps files as they are and leaves reading them to a model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.tiny_tail import TOKENS, WIDTH, params, spec

from anytimecl.codec import ImageBytes, make_codec
from anytimecl.errors import ModelError, StoreError


@given(st.lists(st.binary(max_size=200)))
def test_files_come_back_whatever_the_model(files: list[bytes]) -> None:
    one, another = make_codec("image", spec(), params()), ImageBytes()
    assert isinstance(one, ImageBytes)
    assert another.images([one.encode_image(file) for file in files]) == files


def test_a_model_is_needed_to_decode() -> None:
    made = ImageBytes()
    records = [made.encode_image(b"one"), made.encode_image(b"three")]
    with pytest.raises(ModelError, match="attach"):
        made.decode(records)
    made.attach(lambda files: torch.stack([torch.full((TOKENS, WIDTH), len(f)) for f in files]))
    assert made.decode(records)[:, 0, 0].tolist() == [3, 5]
    with pytest.raises(StoreError, match="damaged"):
        made.decode([records[0][:-1]])


def test_tokens_are_no_image() -> None:
    with pytest.raises(ModelError, match="image itself"):
        ImageBytes().encode(torch.zeros(TOKENS, WIDTH))
