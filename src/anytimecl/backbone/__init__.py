"""Backbones: a frozen trunk, the parameters of the tail, and the embeddings of labels.

Every model is a data file: `models/*.json` says which models are known by name, `families/*.json`
how the checkpoints of a family are laid out. `load` is the one door to all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from anytimecl.backbone.preprocess import pixels as preprocess_pixels
from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.backbone.text import LabelCache, TextEncoder, embed_labels
from anytimecl.errors import ImageError, ModelError

if TYPE_CHECKING:
    import PIL.Image

__all__ = [
    "Backbone",
    "ModelCard",
    "Preprocess",
    "Spec",
    "TailSpec",
    "TextEncoder",
    "Trunk",
    "list_models",
    "load",
]

ENCODE_BATCH = 32  # images in the trunk at once: bounds activations, and more is no faster


class Trunk(Protocol):
    """The frozen blocks."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Pixels [batch, 3, height, width] to tokens [batch, token, width], both float32."""
        ...


@dataclass(frozen=True, eq=False)  # tensors have no one truth to compare by
class Backbone:
    """A model, ready to use. `tail` is the starting point of learning; nothing here changes it."""

    spec: Spec
    trunk: Trunk
    tail: dict[str, Tensor] = field(repr=False)  # canonical names, see TailSpec
    text: TextEncoder | None  # None: the model knows images only
    templates: tuple[str, ...] = ("{}",)  # the prompts that embed a label unless others are given
    label_cache: LabelCache = field(default_factory=LabelCache, repr=False)

    @property
    def device(self) -> torch.device:
        """Where the tail is, and where images and labels are embedded."""
        return next(iter(self.tail.values())).device

    def pixels(self, images: Sequence[PIL.Image.Image]) -> Tensor:
        """RGB images to pixels [image, 3, height, width]."""
        prep = self.spec.preprocess
        if not _several(images):
            return torch.empty(0, 3, prep.height, prep.width)
        return torch.stack([preprocess_pixels(image, prep) for image in images])

    @torch.no_grad()  # not inference_mode: its tensors could never enter a training step
    def encode(self, images: Sequence[PIL.Image.Image]) -> Tensor:
        """RGB images to the tokens that enter the tail, [image, token, width]."""
        batches = [
            self.trunk(self.pixels(images[start : start + ENCODE_BATCH]).to(self.device))
            for start in range(0, _several(images), ENCODE_BATCH)
        ]
        if not batches:
            return torch.empty(0, self.spec.tokens, self.spec.tail.width, device=self.device)
        return torch.cat(batches)

    def embed_labels(self, labels: Sequence[str], templates: Sequence[str] | None = None) -> Tensor:
        """Unit vectors [label, dim] in the order given.

        Each label is put into every template; the vectors of its prompts are averaged and made
        of unit length again. Known labels come from a cache, in RAM and on disk.
        """
        if self.text is None:
            raise ModelError(
                f"{self.spec.name} knows images only and cannot embed labels. Use a model with "
                'a text side, such as "embedded", or a CLIP or SigLIP model.'
            )
        chosen = self.templates if templates is None else tuple(templates)
        vectors = embed_labels(
            self.text, self.label_cache, self.spec.fingerprint, self.spec.dim, labels, chosen
        )
        return vectors.to(self.device)


def _several(images: Sequence[PIL.Image.Image]) -> int:
    """How many images there are, or an error where one came without its list."""
    if not isinstance(images, Sequence):
        raise ImageError(
            f"Images come as a list, not as one {type(images).__name__}: write [image]."
        )
    return len(images)


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
            if values.get("templates") is not None:
                values["templates"] = tuple(values["templates"])
            cards.append(ModelCard(**values))
    return cards


def load(name: str | Path = "embedded", *, tail_blocks: int = 1, device: str = "cpu") -> Backbone:
    """A model by its name here, its Hugging Face name, or the folder that holds it.

    The last `tail_blocks` blocks become the tail. A Hugging Face name may carry a revision:
    `"openai/clip-vit-base-patch32@main"`. Weights are read from safetensors files only.
    """
    if isinstance(tail_blocks, bool) or not isinstance(tail_blocks, int) or tail_blocks < 1:
        raise ModelError(f"tail_blocks is a whole number from 1, not {tail_blocks!r}.")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # what torch raises for a device not there
        raise ModelError(f"The device {device!r} cannot be used here: {error}") from error
    known = {card.name: card for card in list_models()}
    known.update({card.source: card for card in known.values() if card.loader == "hub"})
    card = known.get(str(name))
    if card is not None and not isinstance(name, Path):
        return _LOADERS[card.loader](card, tail_blocks, device)
    folder = Path(name).expanduser()
    if folder.is_dir():
        source = str(folder.resolve())
    elif isinstance(name, Path) or name.startswith((".", "~", "/")) or "\\" in name:
        raise ModelError(f"There is no model folder {str(name)!r}.")
    elif name.count("/") == 1:
        source = name
    else:
        names = ", ".join(sorted(card.name for card in list_models()))
        raise ModelError(
            f"There is no model {name!r}. Known by name: {names}. Else give a Hugging Face name "
            'such as "openai/clip-vit-base-patch32", or a folder that holds such a model.'
        )
    unlisted = ModelCard(source, "hub", source, family="", about="")
    return _LOADERS["hub"](unlisted, tail_blocks, device)


def _load_hub(card: ModelCard, tail_blocks: int, device: str) -> Backbone:
    from anytimecl.backbone import hub  # heavy, so only when it is asked for

    return hub.load(card, tail_blocks, device)


def _load_embedded(card: ModelCard, tail_blocks: int, device: str) -> Backbone:
    from anytimecl.backbone import embedded

    backbone: Backbone = embedded.load(tail_blocks, device, in_float=card.in_float)
    return backbone


def _load_wheel(card: ModelCard, tail_blocks: int, device: str) -> Backbone:
    from anytimecl.backbone import wheel

    return wheel.load(card, tail_blocks, device)


_LOADERS: dict[str, Callable[[ModelCard, int, str], Backbone]] = {
    "hub": _load_hub,
    "embedded": _load_embedded,
    "wheel": _load_wheel,
}
