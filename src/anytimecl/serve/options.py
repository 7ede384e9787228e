"""What a service allows. Everything that grows has a bound here or in `schemas`."""

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
    uploads_bytes: int = 128 * MIB  # all requests under way together
    upload_seconds: float = 30.0  # for a whole body to arrive
    header_seconds: float = 10.0  # for a whole head to arrive
    send_seconds: float = 30.0  # for a client to take what it asked for
    pixels: int = 50_000_000  # of one image
    # These count what is held in RAM while an image is decoded, in pixels of four bytes: a JPEG at
    # the size it is decoded at, WebP and JPEG 2000 five times.
    request_pixels: int = 200_000_000  # of all images of one request
    decoding_pixels: int = 125_000_000  # of all that is being decoded, at once
    waiting_pixels: int = 400_000_000  # of all that waits to be decoded
    per_second: float = 100.0  # requests of one client, in the long run
    burst: int = 200  # and at once
    connections: int = 512
    streams: int = 32  # of server-sent events, for each memory
    memories: int = 100  # besides the first
    open_memories: int = 4  # of these, at once
    tokens: int = 500  # granted
    encode_batch: int = 8  # images in the trunk together
    encode_waiting: int = 256  # images
    name_waiting: int = 32  # requests with new labels
    learn_waiting: int = 64  # lessons and other changes
    learn_seconds: float = 30.0  # that a change may wait for its turn
    disk_free: int = 64 * MIB  # with less, it is not ready
    thumbnails: int = 60  # kept in RAM, of this session
