"""The web page's files, by URL path."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

KINDS = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """Content and media type of a file."""

    content: bytes
    kind: str


def _read() -> dict[str, Asset]:
    folder = resources.files(__package__) / "page"
    found = {
        f"/{place}{file.name}": Asset(file.read_bytes(), KINDS[file.name.rpartition(".")[2]])
        for place, part in (("", folder), ("samples/", folder / "samples"))
        for file in part.iterdir()
        if file.is_file()
    }
    found["/"] = found.pop("/index.html")
    return found


ASSETS = _read()
