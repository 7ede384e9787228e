"""`AnytimeClassifier` over a joined encoder: durable, and its layer learns with the block."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random

import torch

from anytimecl.backbone import Backbone
from anytimecl.checkpoint import Checkpoint
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import Codec
from anytimecl.learner import AdamW
from anytimecl.lock import TurnLock
from anytimecl.memory import Memory
from anytimecl.scale.encoder import JointLearner
from anytimecl.settings import Settings
from anytimecl.student import Progress, Student, _epochs


class EncoderStudent(Student):
    """A student with a `JointLearner`."""

    def __init__(
        self, backbone: Backbone, codec: Codec, memory: Memory, settings: Settings, lock: TurnLock
    ) -> None:
        super().__init__(backbone, codec, memory, settings, lock)
        self.learner = JointLearner(backbone.spec, backbone.tail, settings.learner)

    @torch.no_grad()
    def consolidate(
        self,
        epochs: int,
        event: int,
        progress: Progress | None = None,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        """As the plain student does it, on a copy of this learner."""
        ids = [i for i, _ in self.memory.ids() if i < event]
        size = min(self.settings.learner.offline_batch, len(ids))
        steps = epochs * -(-len(ids) // size) if ids else 0
        trained = copy.deepcopy(self.learner)
        optimiser = AdamW(trained.trainable(), self.settings.learner.weight_decay)
        for number, chosen in enumerate(_epochs(ids, size, epochs, Random(event))):
            if gradients := self._offline_gradients(chosen, trained):
                trained.apply_offline(gradients, optimiser, number / steps, size)
            if progress is not None:
                progress(number + 1, steps)
        done()
        with self.lock.writing():
            self.learner.restore(trained.state())
            self.event = event


class EncoderClassifier(AnytimeClassifier):
    """Open it with `model=join(encoder, labels)`: see `anytimecl.scale.encoder`."""

    def _recovered(
        self, saved: Checkpoint | None, progress: Progress | None = None, *, keep: bool = False
    ) -> Student:
        student = EncoderStudent(self.backbone, self._codec, self.memory, self.settings, self._lock)
        if saved is not None:
            self.memory.admit_loss(saved.event)
            student.restore(saved)
        self._keeper.unsaved = student.replay(progress)
        return student
