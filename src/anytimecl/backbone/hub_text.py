"""The tokeniser and text tower of a model in the Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import embedded, layout
from anytimecl.backbone.hub_config import LOCAL, quiet
from anytimecl.backbone.text import TextEncoder
from anytimecl.errors import ModelError

TEXT_BATCH = 64
_VOCABULARIES = [
    "tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
]  # fmt: skip


class HubText:
    """The tokeniser and text tower of a `transformers` model."""

    def __init__(
        self,
        tower: Any,  # a transformers module
        tokenizer: Any,
        *,
        call: str = "__call__",  # the tower's method for texts
        output: str,  # name of the output with the embedding
        length: int,  # maximal number of tokens; longer texts are truncated
        pad: bool | str,  # True: to the longest of the batch; "max_length": to `length`
        mask: bool,  # whether the tower gets an attention mask
        lower: bool,
    ) -> None:
        self._tower, self._tokenizer = tower, tokenizer
        self._call, self._output, self._length = call, output, length
        self._pad, self._mask, self._lower = pad, mask, lower

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Texts to [text, dim] of unit length."""
        device = self._tower.device
        parts = []
        for start in range(0, len(texts), TEXT_BATCH):
            tokens = self._tokens(texts[start:][:TEXT_BATCH])
            inputs = {"input_ids": tokens["input_ids"].to(device)}
            if self._mask:
                inputs["attention_mask"] = tokens["attention_mask"].to(device)
            found = getattr(self._tower, self._call)(**inputs)
            parts.append(getattr(found, self._output).float().cpu())
        return F.normalize(torch.cat(parts), dim=-1)

    def ids(self, text: str) -> list[int]:
        """The token ids of a text."""
        found: list[int] = self._tokens([text])["input_ids"][0].tolist()
        return found

    def _tokens(self, texts: Sequence[str]) -> Any:
        return self._tokenizer(
            [text.lower() if self._lower else text for text in texts],
            padding=self._pad,
            padding_side="right",  # as all these models were trained
            truncation=True,
            max_length=self._length,
            return_tensors="pt",
        )


def text_of(
    name: str, folder: Path, family: Mapping[str, Any], config: Any, dim: int, device: str
) -> tuple[TextEncoder | None, float]:
    """The text encoder, and its logit scale if that is not among the weights."""
    table = family["text"]
    if table is None:
        return None, 1.0
    if table == "embedded":  # an image tower with the embedded model's text encoder
        text, scale = embedded.text_side(folder)
        return (None, 1.0) if text is None else (text, scale)
    return _tower(name, folder, table, config, dim, device), 1.0


def _tower(
    name: str, folder: Path, table: Mapping[str, Any], config: Any, dim: int, device: str
) -> HubText:
    if not any((folder / file).is_file() for file in _VOCABULARIES):
        raise ModelError(f"{name} has no tokeniser: none of {', '.join(_VOCABULARIES)}.")
    # A tower that exists only within the whole model is called by name.
    call = table.get("call", "__call__")
    shape = config if "call" in table else config.text_config
    if call == "__call__" and hasattr(
        config, "projection_dim"
    ):  # CLIP's, since the text configuration's is often wrong
        shape.projection_dim = config.projection_dim
    with quiet():
        import transformers

        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
            tower, report = getattr(transformers, table["tower"]).from_pretrained(
                folder,
                config=shape,
                local_files_only=True,
                use_safetensors=True,  # other formats can run code
                dtype=torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
            )
        except ImportError as error:
            needed = " ".join(str(error).split())
            if "sentencepiece" in needed.lower():
                needed = "sentencepiece: pip install -c constraints.txt '.[siglip]'"
            raise ModelError(f"The tokeniser of {name} needs another package: {needed}") from error
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise ModelError(f"The text side of {name} cannot be loaded: {error}") from error
    if report["missing_keys"] or report["mismatched_keys"]:
        absent = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
        raise ModelError(f"The text side of {name} is incomplete: {layout.some(absent)}.")
    for part in ("vision_model", "visual_projection") if "call" in table else ():
        delattr(tower, part)
    text = HubText(
        tower.eval().requires_grad_(False).to(device),
        tokenizer,
        call=call,
        output=table["output"],
        length=config.text_config.max_position_embeddings,
        pad=table["pad"],
        mask=table["mask"],
        lower=table["lower"],
    )
    if text(["a"]).shape != (1, dim):
        raise ModelError(f"The text side of {name} has not the {dim} dimensions of its images.")
    return text
