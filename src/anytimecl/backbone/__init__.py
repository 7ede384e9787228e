"""Backbones: a frozen trunk, the parameters of the tail, and a text encoder for labels.

Models are described by data files: `models/*.json` lists those known by name, `families/*.json` the
layouts of checkpoints. `load` loads all of them, and custom ones that are registered in
`BACKBONES`: docs/extending.md.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from anytimecl.backbone import hub_name
from anytimecl.backbone.cards import ModelCard, card_of, list_models
from anytimecl.backbone.codes import SCALE, CodeText
from anytimecl.backbone.preprocess import pixels as preprocess_pixels
from anytimecl.backbone.prior import Prior, prior_file
from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.backbone.text import LabelCache, TextEncoder, cache_folder, embed_labels
from anytimecl.backbone.trunk import OnnxTrunk, TorchTrunk
from anytimecl.errors import ImageError, ModelError, PartError, StoreError
from anytimecl.registry import Choice, Named, Registry, check_options

if TYPE_CHECKING:
    import PIL.Image

__all__ = [
    "BACKBONES",
    "Backbone",
    "ModelCard",
    "Preprocess",
    "Spec",
    "TailSpec",
    "TextEncoder",
    "Trunk",
    "card_of",
    "list_models",
    "load",
    "load_stored",
]

PRECISIONS = ("float32", "float16")  # of a trunk in torch
ENCODERS = 4  # threads at most: each has an image and its activations in RAM
ENCODE_BATCH = 32  # bounds activations; more is not faster


class Trunk(Protocol):
    """The frozen blocks."""

    def __call__(self, pixels: Tensor) -> Tensor:
        """Pixels [batch, 3, height, width] to tokens [batch, token, width], both float32."""
        ...


@dataclass(frozen=True, eq=False)  # tensors cannot be compared by ==
class Backbone:
    """A loaded model. `tail` holds the pre-trained parameters, which learning copies."""

    spec: Spec
    trunk: Trunk
    tail: dict[str, Tensor] = field(repr=False)  # canonical names, see TailSpec
    text: TextEncoder | None  # None: the model knows images only
    templates: tuple[str, ...] = ("{}",)  # default prompt templates
    label_cache: LabelCache = field(default_factory=LabelCache, repr=False)
    prior: Prior | None = field(default=None, repr=False)  # None: not measured
    # `spec.weights` of older versions; slow, so computed only if a memory has another fingerprint.
    former_weights: Callable[[], str] | None = field(default=None, repr=False)
    # Specs with other text encoders, whose stored image features are still valid.
    former_specs: tuple[Spec, ...] = field(default=(), repr=False)
    # Options of a custom backbone, which a memory stores.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Device of the tail, on which images and labels are embedded."""
        return next(iter(self.tail.values())).device

    @property
    def encoders(self) -> int:
        """Number of threads with which to encode images concurrently.

        One more than there are cores, since one may be reading an image. 1 for a torch trunk on a
        CPU, where torch parallelises each image.
        """
        if self.device.type == "cpu" and not isinstance(self.trunk, OnnxTrunk):
            return 1
        threads = torch.get_num_threads()
        return 1 if threads == 1 else min(threads + 1, ENCODERS)

    def pixels(self, images: Sequence[PIL.Image.Image]) -> Tensor:
        """RGB images to pixels [image, 3, height, width]."""
        prep = self.spec.preprocess
        if not _several(images):
            return torch.empty(0, 3, prep.height, prep.width)
        return torch.stack([preprocess_pixels(image, prep) for image in images])

    @torch.no_grad()  # not inference_mode: its tensors cannot be used in training
    def encode(self, images: Sequence[PIL.Image.Image]) -> Tensor:
        """RGB images to the tokens that enter the tail, [image, token, width]."""
        device = self.device
        batches = [
            self.trunk(self.pixels(images[start : start + ENCODE_BATCH]).to(device))
            for start in range(0, _several(images), ENCODE_BATCH)
        ]
        if not batches:
            return torch.empty(0, self.spec.tokens, self.spec.tail.width, device=device)
        return torch.cat(batches)

    def embed_labels(self, labels: Sequence[str], templates: Sequence[str] | None = None) -> Tensor:
        """Unit text embeddings of labels, [label, dim].

        The embeddings of a label's prompts, one for each template, are averaged and normalised.
        Cached in RAM and on disk.
        """
        text = self.require_text()
        chosen = self.templates if templates is None else tuple(templates)
        vectors = embed_labels(
            text, self.label_cache, self.spec.fingerprint, self.spec.dim, labels, chosen
        )
        return vectors.to(self.device)

    def require_text(self) -> TextEncoder:
        """The text encoder; ModelError if there is none."""
        if self.text is None:
            raise ModelError(
                f"{self.spec.name} knows images only and cannot embed labels. Use a model with "
                'a text side, such as "embedded", or a CLIP or SigLIP model.'
            )
        return self.text

    def with_labels(self) -> Backbone:
        """This model for a memory: an image-only model gets codes as label embeddings."""
        if self.text is not None:
            return self
        return dataclasses.replace(
            self,
            spec=dataclasses.replace(self.spec, names=False, logit_scale=SCALE),
            text=CodeText(self.spec.dim),
            templates=("{}",),
            label_cache=LabelCache(),
        )

    def known_as(self, fingerprint: str) -> Backbone:
        """This model with the fingerprint of a memory, which an older version may have computed.

        If it is another model, it is returned unchanged, and its fingerprint differs.
        """
        renamed = [dataclasses.replace(self, spec=spec) for spec in self.former_specs]
        for known in (self, self.with_labels(), *renamed):
            if known.spec.fingerprint == fingerprint:
                return known
        former = self.former()
        return former if former.spec.fingerprint == fingerprint else self

    def former(self) -> Backbone:
        """This model with the fingerprint of older versions."""
        if self.former_weights is None:
            return self
        spec = dataclasses.replace(self.spec, weights=self.former_weights())
        return dataclasses.replace(self, spec=spec)


# Custom backbones, each constructed with the name of the device and its options.
BACKBONES: Registry[Backbone] = Registry("backbone", {}, context=1)


def _several(images: Sequence[PIL.Image.Image]) -> int:
    """How many images there are, or an error where one came without its list."""
    if not isinstance(images, Sequence):
        raise ImageError(
            f"Images come as a list, not as one {type(images).__name__}: write [image]."
        )
    return len(images)


def load(
    name: Choice[Backbone] | Path = "embedded",
    *,
    tail_blocks: int | None = None,
    device: str = "cpu",
) -> Backbone:
    """Load a model by its name here, its Hugging Face name or URL, or its folder.

    Options may be given as {"name": ..., "options": {"tail_blocks": 2}}; a loaded model is
    returned as it is. Models registered in `BACKBONES` have options of their own. The option
    `precision` is "float32" or, to encode several times faster on a GPU, "float16"; a memory
    keeps the one that it was created with.

    The last `tail_blocks` blocks become the tail; by default 1, for SigLIP 0: its pooling head
    alone. A Hugging Face name may have a revision: `"openai/clip-vit-base-patch32@main"`; its
    commit is in `spec.revision`. Weights are read from safetensors files only. A trunk that
    `anytimecl export` wrote is given by its `.onnx` file, and determines the tail.
    """
    named = Named(str(name)) if isinstance(name, Path) else BACKBONES.read(name)
    if isinstance(named.given, Backbone):
        return named.given
    if named.given is not None or named.name in BACKBONES:
        found = BACKBONES.make(named, device)
        spec = dataclasses.replace(found.spec, name=named.name)
        return dataclasses.replace(found, spec=spec, options=named.options)
    check_options(f"the model {named.name!r}", named.options, _takes)
    tail_blocks = named.options.get("tail_blocks", tail_blocks)
    if tail_blocks is not None and (
        isinstance(tail_blocks, bool) or not isinstance(tail_blocks, int) or tail_blocks < 0
    ):
        raise ModelError(f"tail_blocks is a whole number, not {tail_blocks!r}.")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # what torch raises for a device not there
        raise ModelError(f"The device {device!r} cannot be used here: {error}") from error
    card = card_of(name if isinstance(name, Path) else named.name)
    found = _LOADERS[card.loader](card, tail_blocks, device)
    return _in_precision(found, named.options.get("precision", PRECISIONS[0]))


def _takes(tail_blocks: int | None = None, precision: str = "") -> None:
    """Signature of the options of a built-in model."""


def _in_precision(backbone: Backbone, precision: Any) -> Backbone:
    """With the trunk's products in this precision; embeddings agree to a cosine of 0.9999."""
    if precision not in PRECISIONS:
        raise ModelError(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}.")
    if precision == PRECISIONS[0]:
        return backbone
    trunk = backbone.trunk
    if not isinstance(trunk, TorchTrunk):
        raise ModelError(
            f"The trunk of {backbone.spec.name} runs in ONNX Runtime, which has a precision of its "
            'own. On a GPU, or as "embedded-float", the embedded model runs in torch.'
        )
    trunk = TorchTrunk(trunk.params, trunk.spec, half=True)
    return dataclasses.replace(backbone, trunk=trunk, options={"precision": precision})


def load_stored(
    stored: Mapping[str, str],
    model: Choice[Backbone] | Path | None = None,
    *,
    device: str = "cpu",
) -> Backbone:
    """Load the model that a memory or an export was made with, from its metadata.

    `stored` has the JSON of its `Spec` as "spec", and its "fingerprint". A hub model is loaded at
    the commit that was used, whatever its branch has now. Another `model`, if given, gets the same
    number of tail blocks.
    """
    try:
        spec = json.loads(stored["spec"])
        name, commit, blocks = str(spec["name"]), spec.get("revision", ""), spec["tail"]["blocks"]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            "This memory was not made by a classifier: it does not say with which model. Open it "
            "with anytimecl.memory.open_memory."
        ) from error
    if model is not None and not (commit and _source_of(model) == name):
        # 0 blocks, a pooling head alone, is SigLIP's default and impossible for others.
        found = load(model, tail_blocks=blocks or None, device=device)
        return found.known_as(stored["fingerprint"])
    pinned = hub_name.pinned(name, commit)
    try:
        if commit and Path(name).suffix == ".onnx":
            found = _trunk(Path(name), blocks, device, commit)
        else:
            options = json.loads(stored.get("model", "{}"))
            found = load({"name": pinned, "options": options}, tail_blocks=blocks, device=device)
    except PartError:  # code of one's own that cannot be imported is no other model
        raise
    except ModelError as error:
        raise ModelError(f"{error} The memory was made with this model.") from error
    if pinned != name:  # keep the name that was given, without the commit
        found = dataclasses.replace(found, spec=dataclasses.replace(found.spec, name=name))
    return found.known_as(stored["fingerprint"])


def _source_of(model: Choice[Backbone] | Path) -> str | None:
    """The source of a model that is given by name alone, as in its card."""
    if isinstance(model, Backbone):
        return None
    named = Named(str(model)) if isinstance(model, Path) else BACKBONES.read(model)
    if named.given is not None or named.options or named.name in BACKBONES:
        return None
    return card_of(named.name).source


def _load_hub(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    from anytimecl.backbone import hub  # slow to import

    return _measured(hub.load(card, tail_blocks, device))


def _load_embedded(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    from anytimecl.backbone import embedded

    blocks = 1 if tail_blocks is None else tail_blocks
    backbone: Backbone = embedded.load(blocks, device, in_float=card.in_float)
    return backbone


def _load_wheel(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    from anytimecl.backbone import wheel

    return _measured(wheel.load(card, tail_blocks, device))


def _measured(backbone: Backbone) -> Backbone:
    """With the prior that `anytimecl model prior` measured, if any."""
    file = prior_file(cache_folder(), backbone.spec.fingerprint)
    return dataclasses.replace(backbone, prior=Prior.load(file)) if file.is_file() else backbone


def _load_trunk(card: ModelCard, tail_blocks: int | None, device: str) -> Backbone:
    return _trunk(Path(card.source), tail_blocks, device)


def _trunk(file: Path, tail_blocks: int | None, device: str, commit: str = "") -> Backbone:
    """The model from which a trunk was exported, with that trunk and the tail that fits it."""
    from anytimecl.backbone import export
    from anytimecl.backbone.trunk import OnnxTrunk

    told = OnnxTrunk(file).metadata
    if "anytimecl.model" not in told:
        raise ModelError(
            f"{file} was not exported by anytimecl, so nothing says what model it is the trunk of."
        )
    name = hub_name.pinned(told["anytimecl.model"], commit)
    found = load(name, tail_blocks=tail_blocks, device=device)
    blocks = found.spec.tail.last + 1 - int(told["anytimecl.first"])
    if blocks != found.spec.tail.blocks:
        found = load(name, tail_blocks=blocks, device=device)
    found = export.with_onnx(found, file)
    return dataclasses.replace(found, spec=dataclasses.replace(found.spec, name=str(file)))


_LOADERS: dict[str, Callable[[ModelCard, int | None, str], Backbone]] = {
    "hub": _load_hub,
    "embedded": _load_embedded,
    "wheel": _load_wheel,
    "trunk": _load_trunk,
}
