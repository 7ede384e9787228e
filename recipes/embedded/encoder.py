"""The sentence encoder as it is trained: a BERT of `transformers`, with the head that we add.

What runs later is `anytimecl.backbone.embedded.encoder`, from the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from anytimecl.backbone.embedded.text import DIM


class NameEncoder(nn.Module):
    """A sentence encoder with a head into CLIP's label space."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert
        self.head = nn.Linear(bert.config.hidden_size, DIM)

    @classmethod
    def untrained(cls, config: Mapping[str, Any]) -> NameEncoder:
        """With random weights, of the shape that a `config.json` describes."""
        return cls(BertModel(BertConfig(**config), add_pooling_layer=False))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Word pieces [name, piece] to unit vectors [name, DIM]."""
        return F.normalize(self.head(self.pooled(ids, mask)), dim=-1)

    def pooled(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The mean over word pieces, its length made the same for every name [name, width]."""
        read = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(read.dtype)
        mean = F.normalize((read * weight).sum(1) / weight.sum(1), dim=-1)
        return mean * math.sqrt(mean.shape[-1])
