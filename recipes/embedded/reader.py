"""Names, prompts and contexts as the encoder's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from recipes.embedded.pieces import Pieces

TEMPLATES = ("{}", "a photo of a {}.", "an image of the {}")
PIECES = 36  # word pieces of the longest text that training reads whole
BARE = 12  # of the longest name without its context


class Reader:
    """Texts to the encoder's inputs, on the device."""

    def __init__(self, folder: Path, device: str, said: Mapping[str, str]) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.device = device
        self.said = said  # what is known of a name

    def __call__(
        self, names: Sequence[str], *, context: bool = True, template: str = "{}"
    ) -> Pieces:
        """[name, piece]."""
        longest = PIECES if context else BARE
        self.tokenizer.enable_truncation(longest)
        self.tokenizer.enable_padding(length=longest)
        asked = [template.format(name) for name in names]
        texts = [
            f"{text}, {said}" if context and (said := self.said.get(name)) else text
            for text, name in zip(asked, names, strict=True)
        ]
        read, alone = (self.tokenizer.encode_batch(part) for part in (texts, asked))
        ids = torch.tensor([p.ids for p in read])
        mask = torch.tensor([p.attention_mask for p in read])
        length = torch.tensor([sum(p.attention_mask) for p in alone]).unsqueeze(1) - 1
        name = mask * (torch.arange(longest) < length)
        return Pieces(*(part.to(self.device) for part in (ids, mask, name)))
