"""A faster online step: hand-written backward, bfloat16 where faster, CUDA graphs on a GPU.

`learner.Learner` is the reference by autograd, against which the tests check this one.
`acceleration.py` imports `FastLearner` and `CudaStreams` from here; without this folder, it uses
the reference.
"""

from anytimecl.fast.learner import FastLearner
from anytimecl.fast.streams import CudaStreams

__all__ = ["CudaStreams", "FastLearner"]
