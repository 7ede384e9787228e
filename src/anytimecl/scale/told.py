"""Label embeddings for leaves without a text encoder: written by the router, read by leaves.

An append-only file with a line for each label. The router writes a label before it is sent to any
leaf, so a restarted leaf finds all labels of its memory.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.errors import LabelError, ModelError
from anytimecl.files import sync

FILE = "labels.jsonl"


class LabelFile:
    """Label -> embedding [dim], in a file.

    >>> import tempfile
    >>> file = LabelFile(Path(tempfile.mkdtemp()))
    >>> file.put({"cat": torch.tensor([0.5, 1.0])})
    >>> LabelFile(file.path.parent).get("cat")
    tensor([0.5000, 1.0000])
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._known: dict[str, Tensor] = {}
        self._read = 0  # bytes

    def __contains__(self, label: str) -> bool:
        self._refresh(label)
        return label in self._known

    def get(self, label: str) -> Tensor:
        """The embedding of a label."""
        if label not in self:
            raise LabelError(f"The router has not told the vector of {label!r}.")
        return self._known[label]

    def put(self, vectors: dict[str, Tensor]) -> None:
        """Add labels; durable when this returns."""
        lines = b""
        for label, vector in vectors.items():
            raw = base64.b64encode(vector.cpu().float().numpy().tobytes()).decode()
            lines += json.dumps({"label": label, "vector": raw}).encode() + b"\n"
        new = not self.path.exists()
        with self.path.open("ab") as file:
            if file.tell() > self._read:  # a line that a crash cut short must not take ours along
                lines = b"\n" + lines
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync(self.path.parent)  # or a power cut takes the file's name
        self._refresh(None)

    def _refresh(self, label: str | None) -> None:
        """Read new lines, unless the label is known."""
        if (label is not None and label in self._known) or not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                told = json.loads(line)
                raw = np.frombuffer(base64.b64decode(told["vector"]), np.float32)
            except (ValueError, KeyError):
                continue  # the line that a crash cut short
            self._known[told["label"]] = torch.from_numpy(raw.copy())


def _no_trunk(pixels: Tensor) -> Tensor:
    raise ModelError("A leaf has no trunk: the router encodes images.")


@dataclass(frozen=True, eq=False)
class ToldBackbone(Backbone):
    """A model without trunk and text encoder: the tail, and label embeddings from a file."""

    told: LabelFile | None = None

    def with_labels(self) -> Backbone:
        """Unchanged: it has label embeddings without a text encoder."""
        return self

    def embed_labels(self, labels: Sequence[str], templates: Sequence[str] | None = None) -> Tensor:
        """Unit embeddings [label, dim]; the router has applied the templates."""
        assert self.told is not None
        return torch.stack([self.told.get(label) for label in labels]).to(self.device)
