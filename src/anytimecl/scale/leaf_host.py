"""The Ray actor of a leaf, with the leaf's memory and weights."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anytimecl.backbone import Backbone, Spec
from anytimecl.backbone.prior import Prior
from anytimecl.errors import AnytimeError
from anytimecl.files import replacing
from anytimecl.memory.database import Durability
from anytimecl.opening import PRIOR
from anytimecl.scale.leaf import LeafAnswer, LeafLesson
from anytimecl.scale.leaves import leaf_folder, open_leaf
from anytimecl.scale.shortlist import ManyLabels, SentLabels
from anytimecl.scale.told import LabelFile, ToldBackbone, _no_trunk
from anytimecl.settings import Settings
from anytimecl.trainer import Learned

NAMESPACE = "anytimecl"  # of what has a name on a cluster
AUTH_MODE = "RAY_AUTH_MODE"  # Ray's own
KNOCK = 10.0  # timeout in seconds for connecting to a cluster
KEPT = 8  # label sets cached by a leaf
Question = tuple[Sequence[str] | str, Any]  # labels and vectors, or a number and a reference
TAIL = "tail.safetensors"  # the original weights, for leaves without a model


def import_ray() -> Any:
    """Import Ray; raises an error with advice if it is missing."""
    try:
        import ray
    except ImportError as error:
        raise AnytimeError(
            "A cluster needs Ray: pip install -c constraints.txt '.[scale]'"
        ) from error
    return ray


def connect_ray(ray: Any, address: str | None) -> None:
    """Connect to a cluster, unless connected; None starts one here."""
    if ray.is_initialized():
        return
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, namespace=NAMESPACE)
    except (OSError, ValueError) as error:
        told = f"There is no Ray cluster at {address!r}: {error}."
        if AUTH_MODE not in os.environ:
            told += f" If it asks for a token, set {AUTH_MODE}=token here, too."
        raise AnytimeError(told) from error


def _knock(address: str | None) -> None:
    """Raise OSError if nothing listens at HOST:PORT, where Ray would retry for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()


def cause_of(error: BaseException) -> BaseException:
    """The exception that an actor raised, without Ray's wrapper."""
    while isinstance(cause := getattr(error, "cause", None), Exception):
        error = cause
    return error


def died_of(error: BaseException) -> str:
    """Why an actor did not start: the end of Ray's message."""
    return str(error).strip().rpartition("\n")[2]


@contextmanager
def plainly() -> Iterator[None]:
    """Re-raise actors' exceptions without Ray's wrapper."""
    try:
        yield
    except Exception as error:
        if (cause := cause_of(error)) is error:
            raise
        raise cause from error


class LeafHost:
    """The actor: one leaf, its memory and its weights."""

    def __init__(
        self,
        folder: str,
        leaf: int,
        spec: dict[str, Any],
        settings: str,
        durability: Durability = "full",
        create: bool = True,
    ) -> None:
        torch.set_num_threads(1)  # a step is too small to share
        self._kept = SentLabels(KEPT)
        self._leaf = open_leaf(
            leaf_folder(Path(folder), leaf),
            create=create,
            model=ToldBackbone(
                Spec.from_dict(spec),
                _no_trunk,
                load_file(Path(folder) / TAIL),
                text=None,
                told=LabelFile(Path(folder)),
                prior=_prior(Path(folder)),
            ),
            settings=Settings.from_json(settings),
            durability=durability,
        )

    def ready(self) -> str:
        """The node of this actor, once it is ready."""
        return str(import_ray().get_runtime_context().get_node_id())

    def teach(self, lesson: LeafLesson) -> Learned:
        """Store and learn an example."""
        return self._leaf.learn_record(lesson)

    def ask(self, tokens: Any, question: Question) -> LeafAnswer:
        """The leaf's answer for images over labels."""
        many = self._many(question)
        return self._leaf.answer(torch.tensor(tokens), many.labels, many.vectors)

    def shortlist(self, tokens: Any, question: Question) -> list[list[int]]:
        """The most probable of very many labels."""
        return self._leaf.shortlist(torch.tensor(tokens), self._many(question))

    def _many(self, question: Question) -> ManyLabels:
        """Labels and vectors, given or fetched once by their number."""

        def fetch() -> tuple[Sequence[str], Tensor]:
            labels, vectors = import_ray().get(sent[0])
            return labels, torch.tensor(vectors)

        told, sent = question
        if isinstance(told, str):
            return self._kept.get(told, fetch)
        return ManyLabels.of(told, torch.tensor(sent))

    def call(self, method: str, *args: Any) -> Any:
        """Any other method of the leaf."""
        return getattr(self._leaf, method)(*args)


def write_tail(backbone: Backbone, folder: Path) -> None:
    """Write what a leaf needs of a model."""
    with replacing(folder / TAIL) as draft:
        save_file({name: t.cpu().contiguous() for name, t in backbone.tail.items()}, draft)
    if backbone.prior is not None:
        backbone.prior.save(folder / PRIOR)


def _prior(folder: Path) -> Prior | None:
    file = folder / PRIOR
    return Prior.load(file) if file.exists() else None
