"""The image itself: the only codec that outlives a change of model, and the least private one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anytimecl.codec._record import pack, unpack
from anytimecl.errors import ModelError


class ImageBytes:
    """The bytes of the image file, as they came; tokens are made anew whenever they are read.

    The trunk belongs to the classifier, so it is attached, not owned:

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

    def attach(self, tokens_of: Callable[[list[bytes]], Tensor]) -> None:
        """Say how image files become tokens [image, token, width]."""
        self._tokens_of = tokens_of

    def encode_image(self, image: bytes) -> bytes:
        """The bytes of one image file to a record."""
        return pack(self.name, 0, 0, bytes(image))  # no shape: an image is of no model

    def encode(self, tokens: Tensor) -> bytes:
        """Not possible: an image cannot be had from its tokens."""
        raise ModelError(
            "The codec 'image' stores image files, not tokens: give the file to encode_image."
        )

    def images(self, records: Sequence[bytes]) -> list[bytes]:
        """The image files in records, as they were given."""
        return unpack(records, self.name, 0, 0)

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Tensor:
        """Records to tokens [batch, token, width], through the trunk."""
        if self._tokens_of is None:
            raise ModelError("The codec 'image' needs a model to read images: call attach first.")
        return self._tokens_of(self.images(records)).to(device)
