"""Which step is taken: the one that is written out, if the package `fast` is there, or autograd's.

Both say the same. Without the folder `fast/` everything works, in more time.
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
