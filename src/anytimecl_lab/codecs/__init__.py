"""The codecs compared in the lab: the library's, and those that are fitted to a data set.

The library has none of the latter, since a new memory has no data to fit them to.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec import CODECS as LIBRARY
from anytimecl.codec import Codec, PcaImage, PcaImageConfig, configured
from anytimecl.registry import Choice, Registry
from anytimecl_lab.codecs._fitted import FittedCodec
from anytimecl_lab.codecs.pca_dataset import PcaDataset, PcaDatasetConfig
from anytimecl_lab.codecs.vq import Vq, VqConfig

__all__ = [
    "CODECS",
    "FittedCodec",
    "PcaDataset",
    "PcaDatasetConfig",
    "Vq",
    "VqConfig",
    "make_codec",
]

_OWN: dict[str, Callable[..., Codec]] = {
    "vq": lambda spec, tail: Vq(spec),
    "pca-dataset": lambda spec, tail: PcaDataset(spec),
    # The CLS weight as printed in the paper, which is not the one used for its figures.
    "pca-image-literal": configured(PcaImage, PcaImageConfig, cls_weight="literal", int8=False),
    "pca-image-literal-int8": configured(PcaImage, PcaImageConfig, cls_weight="literal", int8=True),
}
CODECS: Registry[Codec] = Registry("codec", ChainMap(_OWN, cast("Any", LIBRARY)), context=2)


def make_codec(choice: Choice[Codec], spec: Spec, tail: Mapping[str, Tensor]) -> Codec:
    """Construct a codec for a model, given by its spec and the parameters of its tail."""
    return CODECS.make(choice, spec, tail)
