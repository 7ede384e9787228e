"""Names of models on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from anytimecl.errors import ModelError


@dataclass(frozen=True)
class HubName:
    """A repository, and a branch, tag or commit if given.

    >>> str(HubName("someone/model", "v2"))
    'someone/model@v2'
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        """The form that `parse` reads."""
        return self.repository + (f"@{self.revision}" if self.revision else "")


def parse(name: str) -> HubName | None:
    """Parse a hub name or URL; None if it is neither.

    >>> str(parse("https://huggingface.co/openai/clip-vit-base-patch32/tree/v1?x=y"))
    'openai/clip-vit-base-patch32@v1'
    >>> str(parse("hf-hub:someone/model@v2")), parse("embedded")
    ('someone/model@v2', None)
    """
    text = name.strip()
    if (address := _address(text)) is not None:
        return address
    text = re.sub(r"^(hf[-_]hub:|hf://(models/)?)", "", text).strip("/")
    repository, at, revision = text.partition("@")
    if repository.count("/") != 1 or (at and not revision):
        return None
    return HubName(repository, revision or None)


def pinned(name: str, commit: str) -> str:
    """A hub name with the commit, if known; other names unchanged.

    >>> pinned("someone/model@main", "1a2b"), pinned("embedded", "2"), pinned("/a/b", "1a2b")
    ('someone/model@1a2b', 'embedded', '/a/b')
    """
    asked = None if Path(name).is_absolute() else parse(name)
    return name if asked is None or not commit else f"{asked.repository}@{commit}"


def _address(text: str) -> HubName | None:
    """From the URL of a page on the hub: of the model, or of a file or branch of it."""
    hosts = {"huggingface.co", "www.huggingface.co", "hf.co"}
    if (own := urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc) != "":
        hosts.add(own)
    parts = urlsplit(text if "://" in text else f"https://{text}")
    if parts.netloc not in hosts or parts.scheme not in ("http", "https"):
        if text.startswith(("http://", "https://")):
            raise ModelError(
                f"{text} is not the address of a model on the Hugging Face hub. Give the model's "
                'name there, such as "openai/clip-vit-base-patch32", or download the model and '
                "give its folder."
            )
        return None
    steps = [unquote(step) for step in parts.path.split("/") if step]
    if steps[:1] == ["models"]:
        steps = steps[1:]
    if len(steps) < 2 or steps[0] in ("datasets", "spaces", "collections", "papers"):
        raise ModelError(f"{text} is not the address of a model: that ends in OWNER/NAME.")
    repository, _, revision = "/".join(steps[:2]).partition("@")
    if len(steps) > 3 and steps[2] in ("tree", "blob", "resolve", "raw", "commit"):
        revision = steps[3]
    return HubName(repository, revision or None)
