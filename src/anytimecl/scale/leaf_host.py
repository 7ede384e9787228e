"""What runs in a leaf's actor on Ray: one leaf, with its memory and weights and no more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from anytimecl.backbone import Backbone, Spec
from anytimecl.errors import AnytimeError
from anytimecl.scale.leaf import Answer, Leaf, Lesson
from anytimecl.scale.leaves import leaf_folder
from anytimecl.scale.told import LabelFile, ToldBackbone, _no_trunk
from anytimecl.settings import Settings
from anytimecl.student import Learned

TAIL = "tail.safetensors"  # the original weights, for leaves that have no model of their own


def import_ray() -> Any:
    """Ray, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise AnytimeError(
            "A cluster needs Ray: pip install -c constraints.txt '.[scale]'"
        ) from error
    return ray


class LeafHost:
    """What runs in the actor: one leaf, its memory and its weights."""

    def __init__(self, folder: str, leaf: int, spec: dict[str, Any], settings: str) -> None:
        torch.set_num_threads(1)  # a step is too small to share
        self._leaf = Leaf.open(
            leaf_folder(Path(folder), leaf),
            model=ToldBackbone(
                Spec.from_dict(spec),
                _no_trunk,
                load_file(Path(folder) / TAIL),
                text=None,
                told=LabelFile(Path(folder)),
            ),
            settings=Settings.from_json(settings),
        )

    def ready(self) -> str:
        """The node that this runs on."""
        return str(import_ray().get_runtime_context().get_node_id())

    def teach(self, lesson: Lesson) -> Learned:
        """Store and learn it."""
        return self._leaf.learn_record(lesson)

    def ask(self, tokens: Any, labels: Sequence[str], vectors: Any) -> Answer:
        """What the leaf says."""
        return self._leaf.answer(torch.tensor(tokens), labels, torch.tensor(vectors))

    def call(self, method: str, *args: Any) -> Any:
        """Any other method of the leaf."""
        return getattr(self._leaf, method)(*args)


def write_tail(backbone: Backbone, folder: Path) -> None:
    draft = folder / f".{TAIL}-new"
    save_file({name: t.cpu().contiguous() for name, t in backbone.tail.items()}, draft)
    os.replace(draft, folder / TAIL)
