"""From image files to tokens and from labels to vectors, for all memories of a model.

Images are decoded by a few threads within a budget, and encoded in batches by one thread. When a
client disconnects, its waiting images are dropped. Memories share the queues, which are fair
between clients.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.errors import ImageError
from anytimecl.images import Cost, image_cost, load_image
from anytimecl.serve import tracing
from anytimecl.serve.asking import ASKER
from anytimecl.serve.decoder import SMALL, Decoder
from anytimecl.serve.encoder import Encoder
from anytimecl.serve.fair import Ticket
from anytimecl.serve.metrics import Metrics
from anytimecl.serve.options import Options
from anytimecl.serve.problems import Problem
from anytimecl.thumbnails import thumbnail_of

T = TypeVar("T")
NAMES = 32  # labels embedded per batch
ENOUGH = 3  # times the model's input size: JPEGs are decoded at about this size
KNOWN = 10_000  # labels known to be embedded; the cache of vectors holds twice as many
Decoded = tuple[Tensor, bytes | None]  # pixels [3, height, width], and a thumbnail


class Intake:
    """A model and the queues in front of it."""

    def __init__(self, backbone: Backbone, options: Options) -> None:
        self.backbone = backbone
        self.options = options
        self.metrics = Metrics()
        self.encoder = Encoder(
            self._trunk,
            batch=options.encode_batch,
            waiting=options.encode_waiting,
            # On a GPU, a batch takes hardly longer than one image.
            bulk=2 if backbone.device.type == "cpu" else options.encode_batch,
            observe=self.metrics.observe_batch,
        )
        self.names = Decoder(
            budget=SMALL * NAMES,
            waiting=options.name_waiting,
            waiting_pixels=NAMES * options.name_waiting,
            threads=1,  # the text encoder uses every core by itself
            what="labels",
        )
        self.decoder = Decoder(
            budget=options.decoding_pixels,
            waiting=options.encode_waiting,
            waiting_pixels=options.waiting_pixels,
        )
        self._named: set[tuple[tuple[str, ...] | None, str]] = set()  # those with cached vectors
        self._answers = ThreadPoolExecutor(2, "anytimecl-answer")
        self._looks = ThreadPoolExecutor(2, "anytimecl-look")

    @property
    def alive(self) -> bool:
        """Whether all threads are running."""
        return self.decoder.alive and self.encoder.alive and self.names.alive

    def close(self) -> None:
        """Finish the queues, then stop."""
        self.decoder.close()
        self.encoder.close()
        self.names.close()
        self._answers.shutdown()
        self._looks.shutdown()

    async def answer(self, work: Callable[[], T]) -> T:
        """Run short reading work in a thread; predictions use this."""
        return await asyncio.get_running_loop().run_in_executor(self._answers, work)

    async def look(self, work: Callable[[], T]) -> T:
        """Run work whose cost grows with the memory in threads that predictions do not use."""
        return await asyncio.get_running_loop().run_in_executor(self._looks, work)

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """Ticket of a request; drops its waiting images at the end of the block."""
        ticket = Ticket(ASKER.get().client)
        try:
            yield ticket
        finally:
            self.names.drop(ticket)
            self.decoder.drop(ticket)
            self.encoder.drop(ticket)

    async def name(self, labels: Sequence[str], templates: tuple[str, ...] | None) -> None:
        """Embed new labels, a few at a time.

        A thousand labels take many seconds, during which other requests must not wait.
        """
        new = [label for label in labels if (templates, label) not in self._named]
        with self.ticket() as ticket:
            for start in range(0, len(new), NAMES):
                some = new[start : start + NAMES]
                work = functools.partial(self.backbone.embed_labels, some, templates)
                [embedded] = self.names.submit(ticket, [(len(some), work)])
                await asyncio.wrap_future(embedded)
                self._named.update((templates, label) for label in some)
        if len(self._named) > KNOWN:
            self._named.clear()  # the cache of vectors evicts, too

    async def decode(
        self, images: Sequence[bytes | ImageError], ticket: Ticket, thumbnail: bool = False
    ) -> list[Decoded | ImageError]:
        """Pixels of each image, and a thumbnail if wanted; or its error.

        Images are queued as the model's pixels, since decoded images may be a hundred times as
        large.
        """
        with tracing.span("decode", images=len(images)):
            return await self._decode_all(images, ticket, thumbnail)

    async def _decode_all(
        self, images: Sequence[bytes | ImageError], ticket: Ticket, thumbnail: bool
    ) -> list[Decoded | ImageError]:
        files = [image for image in images if not isinstance(image, ImageError)]
        looks = [(len(image) // 16, functools.partial(self._look, image)) for image in files]
        seen = iter(await _all(self.decoder.submit(ticket, looks)))
        costs = [one if isinstance(one, ImageError) else next(seen) for one in images]
        good = [
            (image, one.held)
            for image, one in zip(images, costs, strict=True)
            if not isinstance(image, ImageError) and not isinstance(one, ImageError)
        ]
        self._check_sum([cost for _, cost in good])
        work = [
            (cost, functools.partial(self._decode, image, thumbnail=thumbnail))
            for image, cost in good
        ]
        done = iter(await _all(self.decoder.submit(ticket, work)))
        return [one if isinstance(one, ImageError) else next(done) for one in costs]

    async def encode(
        self, pixels: Sequence[Tensor], ticket: Ticket, *, lesson: bool = False
    ) -> list[Tensor]:
        """Tokens [token, width] of each."""
        with tracing.span("encode", images=len(pixels)):
            futures: list[Future[Tensor]] = self.encoder.submit(ticket, pixels, lesson=lesson)
            return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))

    # Private

    def _trunk(self, pixels: Tensor) -> Tensor:
        return self.backbone.trunk(pixels.to(self.backbone.device))

    @property
    def _enough(self) -> int:
        prep = self.backbone.spec.preprocess
        return ENOUGH * max(prep.height, prep.width)

    def _look(self, image: bytes) -> Cost:
        found = image_cost(image, max_pixels=self.options.pixels, at_least=self._enough)
        if found.held > self.decoder.largest:
            raise ImageError(
                f"cannot read image (bytes of length {len(image)}): its size is "
                f"{found.width}x{found.height}, which takes more RAM in its format than is set "
                "aside; make it smaller, or convert it to JPEG or PNG"
            )
        return found

    def _decode(self, image: bytes, *, thumbnail: bool) -> Decoded:
        loaded = load_image(image, max_pixels=self.options.pixels, at_least=self._enough)
        small = thumbnail_of(loaded) if thumbnail else None
        return self.backbone.pixels([loaded])[0], small

    def _check_sum(self, held: Sequence[int]) -> None:
        most = self.options.request_pixels
        if sum(held) > most and len(held) > 1:
            raise Problem(
                413,
                f"The images of this request have {sum(held):,} pixels to decode, and a request "
                f"may have {most:,}: send fewer at a time.",
            )


async def _all(futures: Sequence[Future[T]]) -> list[T | ImageError]:
    """All results or ImageErrors; raises any other error."""
    done = await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
    results: list[T | ImageError] = []
    for one in done:
        if isinstance(one, BaseException) and not isinstance(one, ImageError):
            raise one
        results.append(one)
    return results
