"""Active learning over HTTP: in which order to label images that were predicted recently.

The latest `MOST` vectors are kept in RAM only, and all are deleted when anything is forgotten.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anytimecl.errors import ImageError
from anytimecl.inbox import knowing
from anytimecl.tail import images_of

if TYPE_CHECKING:
    from anytimecl.classifier import AnytimeClassifier

MOST = 2048  # vectors: two megabytes


def key_of(image: bytes) -> str:
    """Id of an image: a digest.

    >>> key_of(b"an image") == key_of(b"another")
    False
    """
    return hashlib.sha256(image).hexdigest()[:32]


class LookedAt:
    """The original model's vectors of recent images."""

    def __init__(self, classifier: AnytimeClassifier) -> None:
        self._classifier = classifier
        self._vectors: OrderedDict[str, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    @torch.no_grad()
    def add(self, images: Iterable[bytes | ImageError], tokens: Tensor) -> None:
        """Add images by their tokens [image, token, width]."""
        backbone = self._classifier.backbone
        vectors = images_of(backbone.tail, backbone.spec.tail, tokens).half().cpu()
        with self._lock:
            for image, vector in zip(images, vectors, strict=True):
                assert isinstance(image, bytes)  # else it has no tokens
                key = key_of(image)
                self._vectors[key] = vector.clone()
                self._vectors.move_to_end(key)
            while len(self._vectors) > MOST:
                self._vectors.popitem(last=False)

    def clear(self) -> None:
        """Delete all vectors; called when anything is forgotten."""
        with self._lock:
            self._vectors.clear()

    def order(self, keys: Sequence[str], labels: Sequence[str]) -> list[str]:
        """The known images: the most informative first, then by uncertainty."""
        with self._lock:
            found = {key: self._vectors[key] for key in keys if key in self._vectors}
        if not found:
            return []
        images = torch.stack(list(found.values())).float()
        with knowing(self._classifier, labels) as known:
            asked = known.say(images)
            best = known.best(asked, random.Random(len(found)).random())
        doubt = asked.doubt
        doubt[best] = 2.0
        names = list(found)
        return [names[at] for at in doubt.argsort(descending=True, stable=True).tolist()]
