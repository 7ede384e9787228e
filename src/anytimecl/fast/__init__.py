"""The online step in less time: written out, in bfloat16 where that pays, captured on a GPU.

Nothing here says anything new: `learner.Learner` is the same step by autograd, and the tests hold
this one to it. `acceleration.py` takes `FastLearner` and `CudaStreams` from here; with the folder
gone, it takes the plain ones.
"""

from anytimecl.fast.learner import FastLearner
from anytimecl.fast.streams import CudaStreams

__all__ = ["CudaStreams", "FastLearner"]
