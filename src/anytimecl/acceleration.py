"""The online step: the hand-written one of `fast/` if that package is there, else autograd.

Both compute the same; `fast/` takes less time.
"""

from __future__ import annotations

try:
    from anytimecl.fast import CudaStreams as DeviceStreams
    from anytimecl.fast import FastLearner as OnlineLearner
except ModuleNotFoundError as missing:
    if missing.name != "anytimecl.fast":
        raise
    from anytimecl.device import Streams as DeviceStreams  # type: ignore[assignment]
    from anytimecl.learner import Learner as OnlineLearner  # type: ignore[assignment]

__all__ = ["DeviceStreams", "OnlineLearner"]
