"""Models known by name, and what is known of any other before it is loaded."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from anytimecl.backbone import hub_name
from anytimecl.errors import ModelError


@dataclass(frozen=True)
class ModelCard:
    """A model known by name."""

    name: str
    loader: str  # a key of `_LOADERS`
    source: str  # where the weights come from: a Hugging Face name, or "package"
    family: str
    about: str
    templates: tuple[str, ...] | None = None  # None: the family's own
    in_float: bool = False  # of the embedded model: its float trunk, also on a CPU
    also: tuple[str, ...] = ()  # what others call it: OpenAI, open_clip, torch.hub


def list_models() -> list[ModelCard]:
    """Every model known by name; any other of the same families loads as well.

    >>> "embedded" in [card.name for card in list_models()]
    True
    """
    cards = []
    folder = resources.files(__package__) / "models"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".json"):
            values: dict[str, Any] = json.loads(entry.read_text(encoding="utf-8"))
            lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
            cards.append(ModelCard(**{**values, **lists}))
    return cards


def card_of(name: str | Path) -> ModelCard:
    """The card of any model that `load` takes; one is made up for those not known by name."""
    known = {card.name: card for card in list_models()}
    called = known | {other: card for card in known.values() for other in card.also}
    if isinstance(name, str) and name in called:
        return called[name]
    path = Path(name).expanduser()
    if path.is_dir():
        folder = str(path.resolve())
        return ModelCard(folder, "hub", folder, family="", about="a folder")
    if path.suffix == ".onnx" and path.is_file():
        file = str(path.resolve())
        return ModelCard(file, "trunk", file, family="", about="an exported trunk")
    if path.is_file():
        raise ModelError(
            f"{name} is a file. Give the folder that it lies in, with its config.json."
        )
    if isinstance(name, Path) or name.startswith((".", "~", "/")) or "\\" in name:
        raise ModelError(f"There is no model folder {str(name)!r}.")
    asked = hub_name.parse(name)
    if asked is None:
        names = ", ".join(sorted(known))
        raise ModelError(
            f"There is no model {name!r}. Known by name: {names}. Else give a Hugging Face name "
            'such as "openai/clip-vit-base-patch32", or a folder that holds such a model. One of '
            "your own is known once the module that registers it is imported."
        )
    source = str(asked)
    for card in known.values():
        if card.loader == "hub" and card.source == asked.repository:
            return dataclasses.replace(card, source=source)
    return ModelCard(source, "hub", source, family="", about="a model on the Hugging Face hub")
