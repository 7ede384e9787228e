"""A learner of the fast kind, for tests."""

from __future__ import annotations

from typing import Any

from tests.test_learner import CONFIG

from anytimecl.backbone import Backbone
from anytimecl.fast import FastLearner
from anytimecl.settings import LearnerConfig


def fast_learner(backbone: Backbone, config: LearnerConfig = CONFIG, **kinds: Any) -> FastLearner:
    """With a copy of the tail of its own."""
    tail = {name: value.to(**kinds).clone() for name, value in backbone.tail.items()}
    return FastLearner(backbone.spec, tail, config)
