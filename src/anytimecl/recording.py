"""The part of a classifier that encodes images as records, and checks records made elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.ahead import Item, Made, some_ahead
from anytimecl.codec import ImageBytes
from anytimecl.codec.image import file_of
from anytimecl.curation import Curation
from anytimecl.errors import AnytimeError, StoreError
from anytimecl.images import ImageSource, load_image
from anytimecl.predicting import digest_of
from anytimecl.tail import embed
from anytimecl.thumbnails import thumbnail_of


class RecordError(StoreError):
    """A record made elsewhere that is damaged, or of another model or codec."""


class Record(NamedTuple):
    """An image in its stored form."""

    data: bytes
    content: int | None = None  # digest of its tokens
    source: str | None = None  # its name where it comes from
    thumbnail: bytes | None = None
    time: int | None = None  # when it was first learned, in milliseconds since 1970; None: now


class Recording(Curation):
    """Encodes images as records."""

    def ahead(
        self, items: Iterable[Item], work: Callable[[Item], Made]
    ) -> Iterator[Callable[[], Made]]:
        """Run `work` on the next items while this one is learned; results in order.

        Parameters
        ----------
        items
            Inputs of the work.
        work
            Called with each item, in any thread.

        Yields
        ------
        callable
            Returns the result for an item, or raises its error.
        """
        several = self.backbone.encoders
        if several == 1 or not self._trainer.learner.alike:
            return some_ahead(items, work)
        return some_ahead(items, work, several, alone=True)

    def _record(self, image: ImageSource, source: str | None = None) -> Record:
        if source is None and isinstance(image, str | os.PathLike):
            source = os.fspath(image)
        loaded = load_image(image)  # has the best error messages
        small = thumbnail_of(loaded) if self.memory.thumbnails else None
        if isinstance(self._codec, ImageBytes):
            data = self._codec.encode_image(file_of(image))
            tokens = self._codec.decode([data])  # cached for learning; no lock is held here
            return Record(data, digest_of(tokens[0]), source, small)
        with self._streams.encoding():  # a GPU's step goes on meanwhile
            [tokens] = self.backbone.encode([loaded])
            return Record(self._codec.encode(tokens), digest_of(tokens), source, small)

    def _compressed(self, tokens: Tensor) -> Record:
        return Record(self._codec.encode(tokens), digest_of(tokens))

    @torch.no_grad()
    def _check_record(self, record: bytes, fingerprint: str) -> None:
        """Raise RecordError unless the original tail computes finite embeddings from a record."""
        backbone = self.backbone
        if fingerprint != backbone.spec.fingerprint:
            raise RecordError(
                f"The record was made with another model ({fingerprint[:60]}) than this memory, "
                f"which is of {backbone.spec.name} ({backbone.spec.fingerprint}), and features of "
                "one cannot be turned into those of another: encode the image with that model."
            )
        try:
            tokens = self._codec.decode([record], backbone.device)
        except AnytimeError as error:
            raise RecordError(str(error)) from error
        except (ValueError, IndexError) as error:  # right checksum, wrong content
            raise RecordError(f"The record is damaged: {error}.") from error
        if not embed(backbone.tail, backbone.spec.tail, tokens).isfinite().all():
            raise RecordError("The record is damaged: it holds numbers that are not finite.")
