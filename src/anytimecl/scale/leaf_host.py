"""What runs in a leaf's actor on Ray: one leaf, with its memory and weights and no more."""

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
KNOCK = 10.0  # seconds that a cluster's door may take to open
KEPT = 8  # sets of labels that stay with whoever was asked about them
Question = tuple[Sequence[str] | str, Any]  # labels and vectors, or a number and where they are
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


def connect_ray(ray: Any, address: str | None) -> None:
    """Join a cluster, unless this process has; None: one of its own is started here."""
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
    """OSError where nobody listens at HOST:PORT, after which Ray would look for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK).close()


def cause_of(error: BaseException) -> BaseException:
    """What an actor has raised, rather than Ray's account of it."""
    while isinstance(cause := getattr(error, "cause", None), Exception):
        error = cause
    return error


def died_of(error: BaseException) -> str:
    """Why an actor did not start: the end of Ray's account of it."""
    return str(error).strip().rpartition("\n")[2]


@contextmanager
def plainly() -> Iterator[None]:
    """Errors of actors as they raised them."""
    try:
        yield
    except Exception as error:
        if (cause := cause_of(error)) is error:
            raise
        raise cause from error


class LeafHost:
    """What runs in the actor: one leaf, its memory and its weights."""

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
        """The node that this runs on."""
        return str(import_ray().get_runtime_context().get_node_id())

    def teach(self, lesson: LeafLesson) -> Learned:
        """Store and learn it."""
        return self._leaf.learn_record(lesson)

    def ask(self, tokens: Any, question: Question) -> LeafAnswer:
        """What the leaf says of images, over labels and their vectors."""
        many = self._many(question)
        return self._leaf.answer(torch.tensor(tokens), many.labels, many.vectors)

    def shortlist(self, tokens: Any, question: Question) -> list[list[int]]:
        """Which of very many labels images could have."""
        return self._leaf.shortlist(torch.tensor(tokens), self._many(question))

    def _many(self, question: Question) -> ManyLabels:
        """Labels and vectors that came along, or those of a number, which are fetched once."""

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
    draft = folder / f".{TAIL}-new"
    save_file({name: t.cpu().contiguous() for name, t in backbone.tail.items()}, draft)
    os.replace(draft, folder / TAIL)
    if backbone.prior is not None:
        backbone.prior.save(folder / PRIOR)


def _prior(folder: Path) -> Prior | None:
    file = folder / PRIOR
    return Prior.load(file) if file.exists() else None
