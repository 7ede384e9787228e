"""The attention of one query, forward and backward written out, in three forms.

What a head reads of an image is a weighted sum of its tokens. They come as they are, or as sums of
a few parts (`tail.Tokens`); keys and values are worked out for them, or fold into the query. All
forms give the same, up to rounding:

    whole.py     tokens as they are; keys, values and the norm's affine fold into the query
    parts.py     tokens as sums of parts; the affine is put on the parts, of which there are few
    stacked.py   parts again; queries, keys and values of all of them in one product

The first two multiply the least. The third takes the fewest kernels once a compiler has been over
it; it is for a GPU, and used where the three weights were laid out one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from torch import Tensor

from anytimecl.attention import parts, stacked, whole
from anytimecl.attention._common import Attended, Returned, across, back_across, heavy, linear
from anytimecl.attention.stacked import STACKED
from anytimecl.backbone.spec import TailSpec
from anytimecl.tail import Tokens

__all__ = [
    "STACKED",
    "Attended",
    "Returned",
    "across",
    "attend",
    "back_across",
    "come_back",
    "heavy",
    "linear",
]


def attend(p: Mapping[str, Tensor], spec: TailSpec, tokens: Tokens) -> Attended:
    """The way forward, up to the values."""
    found: Attended = _form(p, tokens).attend(p, spec, tokens)
    return found


def come_back(
    p: Mapping[str, Tensor], spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    """The way back from the gradient of the values, [batch, head, depth]."""
    found: Returned = _form(p, tokens).come_back(p, spec, tokens, was, d_values)
    return found


def _form(p: Mapping[str, Tensor], tokens: Tokens) -> ModuleType:
    if tokens.coefficients is None:
        return whole
    return stacked if STACKED in p else parts
