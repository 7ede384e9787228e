"""`AnytimeClassifier` over a joined encoder: durable, and its layer learns with the block."""

from __future__ import annotations

from anytimecl.classifier import AnytimeClassifier
from anytimecl.scale.encoder import JointLearner
from anytimecl.student import Student


class EncoderStudent(Student):
    """A student with a `JointLearner`."""

    learner_type = JointLearner


class EncoderClassifier(AnytimeClassifier):
    """Open it with `model=join(encoder, labels)`: see `anytimecl.scale.encoder`."""

    student_type = EncoderStudent
