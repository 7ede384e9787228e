"""`AnytimeClassifier` for a joined encoder, whose linear layer is trained with the block."""

from __future__ import annotations

from anytimecl.classifier import AnytimeClassifier
from anytimecl.journaled import JournaledTrainer
from anytimecl.scale.encoder import JointLearner


class EncoderTrainer(JournaledTrainer):
    """A trainer with a `JointLearner`."""

    learner_type = JointLearner


class EncoderClassifier(AnytimeClassifier):
    """Open it with `model=join(encoder, labels)`: see `anytimecl.scale.encoder`."""

    trainer_type = EncoderTrainer
