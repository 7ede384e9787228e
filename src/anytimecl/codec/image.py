"""Stores the image file: the only codec that allows changing the model, and the least private."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from anytimecl.codec._record import pack, unpack
from anytimecl.errors import ModelError
from anytimecl.images import ImageSource, load_image

KEPT_BYTES = 1 << 28  # of cached tokens, for examples that are replayed often


class ImageBytes:
    """Stores image files unchanged; decoding runs the trunk, with a cache.

    The trunk is attached by the classifier:

    >>> codec = ImageBytes()
    >>> record = codec.encode_image(b"the bytes of a JPEG file")
    >>> codec.images([record])
    [b'the bytes of a JPEG file']
    >>> codec.attach(lambda images: torch.zeros(len(images), 197, 768))
    >>> codec.decode([record]).shape
    torch.Size([1, 197, 768])
    """

    name = "image"
    needs_image = True

    def __init__(self) -> None:
        self._tokens_of: Callable[[list[bytes]], Tensor] | None = None
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()  # LRU, by digest
        self._bytes = 0
        self._lock = threading.Lock()

    def attach(self, tokens_of: Callable[[list[bytes]], Tensor]) -> None:
        """Set the function from image files to tokens [image, token, width]."""
        self._tokens_of = tokens_of
        self.clear()

    def encode_image(self, image: bytes) -> bytes:
        """The bytes of one image file to a record."""
        return pack(self.name, 0, 0, bytes(image))  # no shape: independent of the model

    def encode(self, tokens: Tensor) -> bytes:
        """Not supported: tokens cannot be turned into an image."""
        raise ModelError(
            "The codec 'image' stores image files, not tokens: learn from the image itself."
        )

    def images(self, records: Sequence[bytes]) -> list[bytes]:
        """The image files in records."""
        return unpack(records, self.name, 0, 0)

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Tensor:
        """Records to tokens [batch, token, width], through the trunk."""
        return torch.stack([self._tokens(image) for image in self.images(records)]).to(device)

    def clear(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _tokens(self, image: bytes) -> Tensor:
        """One image at a time: in a batch it rounds differently, and replay must be exact."""
        if self._tokens_of is None:
            raise ModelError("The codec 'image' needs a model to read images: call attach first.")
        name = hashlib.sha256(image).digest()
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        tokens = self._tokens_of([image])[0]
        with self._lock:
            if name not in self._kept:
                self._kept[name] = tokens
                self._bytes += tokens.nbytes
            while self._bytes > KEPT_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return tokens


def file_of(source: ImageSource) -> bytes:
    """The bytes of an image file; for an image that is not a file, a PNG.

    >>> file_of(b"as it came")
    b'as it came'
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | os.PathLike):
        return Path(source).read_bytes()
    if hasattr(source, "read") and hasattr(source, "seek"):
        source.seek(0)
        return bytes(source.read())
    made = io.BytesIO()
    load_image(source).save(made, "PNG")
    return made.getvalue()
