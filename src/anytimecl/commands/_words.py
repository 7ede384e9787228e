"""Translates error messages of the library to command-line options."""

from __future__ import annotations

import re

_SAID = {
    r"`anytimecl\.memory\.rescue`": "`anytimecl memory rescue`",
    r", or open it here with read_only=True": "",
    r'\b(model|codec)="([^"]*)"': r"--\1 \2",
    r"with (\w+)=(.+), not (.+)\. Open it without settings": r"with --\1 \2, not \3. Leave it out",
    r"; read one image with load_image": "; name the folder that holds it",
    r", and go through it with iter_images": "",
    r", or raise max_pixels if you trust it": "",
    r": use `next` of the page before": ": the page before ends with the place",
}


def in_options(told: str) -> str:
    """A message with options instead of Python's arguments.

    >>> in_options('Open it with model="embedded-float".')
    'Open it with --model embedded-float.'
    """
    for said, instead in _SAID.items():
        told = re.sub(said, instead, told)
    return told
