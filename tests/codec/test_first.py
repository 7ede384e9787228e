"""Records round-trip, and none that is damaged is read."""

from __future__ import annotations

import pytest
import torch

from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.codec import make_codec
from anytimecl.errors import StoreError


def _spec() -> Spec:
    prep = Preprocess(32, 32, "shortest", 32, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    tail = TailSpec(2, 1, 32, 4, "quick_gelu", 1e-5)
    return Spec("tiny", "clip", prep, tail, 17, 24, 100.0, 0.0, "none")


def test_half_tokens_round_trip() -> None:
    codec = make_codec("tokens-fp16", _spec(), {})
    tokens = torch.randn(17, 32, generator=torch.Generator().manual_seed(0))
    record = codec.encode(tokens)
    back = codec.decode([record])
    assert isinstance(back, torch.Tensor)
    assert (back[0] - tokens).abs().max() <= tokens.abs().max() * 2**-11
    with pytest.raises(StoreError, match="damaged"):
        codec.decode([record[:-1]])
