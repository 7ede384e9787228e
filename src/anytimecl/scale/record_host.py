"""Encoders: turn images into records and embeddings, to unburden the router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray

from anytimecl.backbone import Backbone
from anytimecl.backbone import load as load_backbone
from anytimecl.codec import make_codec
from anytimecl.errors import StoreError
from anytimecl.predicting import digest_of
from anytimecl.scale.leaf import image_vectors, vector_of
from anytimecl.settings import Settings


class EncodedImage(NamedTuple):
    """An encoded image, for learning."""

    record: bytes
    vector: NDArray[np.float32]  # [dim], for routing
    content: int | None = None  # digest of its tokens, if known


class Looked(NamedTuple):
    """Encoded images, for prediction."""

    tokens: NDArray[np.float32]  # [image, token, width]
    vectors: NDArray[np.float32]  # [image, dim], for routing


class RecordMaker:
    """A model's trunk, and its codec."""

    def __init__(self, backbone: Backbone, settings: Settings) -> None:
        self._backbone = backbone
        self._codec = make_codec(settings.codec, backbone.spec, backbone.tail)

    def encoded(self, images: Sequence[PIL.Image.Image]) -> list[EncodedImage]:
        """Encode images for learning."""
        found = []
        for tokens in self._backbone.encode(images):
            record = self._codec.encode(tokens)
            found.append(EncodedImage(record, self._vector(record), digest_of(tokens)))
        return found

    def located(self, record: bytes) -> EncodedImage:
        """Check and embed a record that was made elsewhere; StoreError if it is damaged."""
        return EncodedImage(record, self._vector(record))

    def looked(self, images: Sequence[PIL.Image.Image]) -> Looked:
        """Encode images for prediction."""
        tokens = self._backbone.encode(images)
        vectors = image_vectors(self._backbone, tokens).cpu()
        return Looked(tokens.cpu().numpy(), vectors.numpy())

    def _vector(self, record: bytes) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = vector_of(self._backbone, self._codec, record).numpy()
        return vector


class RecordHost(RecordMaker):
    """The Ray actor of an encoder."""

    def __init__(self, model: str, fingerprint: str, settings: str, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        backbone = load_backbone(model).known_as(fingerprint)
        if backbone.spec.fingerprint != fingerprint:
            raise StoreError(f"The tree was made with another model than {model!r} is here.")
        super().__init__(backbone, Settings.from_json(settings))

    def ready(self) -> bool:
        """Returns when the model is loaded."""
        return True


def encoders_on(ray: Any, count: int, cpus: float, *args: Any) -> list[Any]:
    """Encoder actors, which Ray restarts on any node."""
    host = ray.remote(num_cpus=cpus, max_restarts=-1, scheduling_strategy="SPREAD")(RecordHost)
    return [host.remote(*args) for _ in range(count)]
