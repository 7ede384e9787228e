"""Limits of a service. Everything that can grow is limited here or in `schemas`."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Options:
    """Limits of a service.

    >>> Options().upload_bytes
    33554432
    """

    upload_bytes: int = 32 * MIB  # one request
    uploads_bytes: int = 128 * MIB  # all current requests together
    upload_seconds: float = 30.0  # for a whole body to arrive
    header_seconds: float = 10.0  # for a whole head to arrive
    send_seconds: float = 30.0  # for a client to read the response
    pixels: int = 50_000_000  # of one image
    # Peak memory while an image is decoded, in pixels of four bytes: a JPEG counts with
    # the size that it is decoded at, WebP and JPEG 2000 five times.
    request_pixels: int = 200_000_000  # of all images of one request
    decoding_pixels: int = 125_000_000  # of all images being decoded
    waiting_pixels: int = 400_000_000  # of all images waiting to be decoded
    per_second: float = 100.0  # sustained request rate of a client
    burst: int = 200  # requests of a client at once
    connections: int = 512
    streams: int = 32  # of server-sent events, for each memory
    memories: int = 100  # besides the first
    open_memories: int = 4  # of these
    tokens: int = 500  # granted
    encode_batch: int = 8  # images per batch of the trunk
    encode_waiting: int = 256  # images
    name_waiting: int = 32  # requests with new labels
    learn_waiting: int = 64  # changes
    learn_seconds: float = 30.0  # that a change may wait in the queue
    disk_free: int = 64 * MIB  # below this the service is not ready
    thumbnails: int = 60  # in RAM, of recently learned images
