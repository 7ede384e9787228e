"""Methods under one small interface: learn the examples of a stage, predict over any labels."""

from __future__ import annotations

from anytimecl.bench.methods._base import Method
from anytimecl.bench.methods.icarl import ICaRL
from anytimecl.bench.methods.knn import NearestNeighbours
from anytimecl.bench.methods.lwf import LwF
from anytimecl.bench.methods.offline import Offline
from anytimecl.bench.methods.online import Online
from anytimecl.bench.methods.original import Original
from anytimecl.bench.methods.probe import LinearProbe
from anytimecl.bench.methods.tree import TreeProbe
from anytimecl.bench.methods.tuned import Joint, Sequential
from anytimecl.bench.methods.wise_ft import WiseFt
from anytimecl.bench.methods.zscl import Zscl

__all__ = ["METHODS", "Method"]

METHODS: dict[str, type[Method]] = {
    "original": Original,
    "online": Online,
    "offline": Offline,
    "linear-probe": LinearProbe,
    "tree-probe": TreeProbe,
    "knn": NearestNeighbours,
    "wise-ft": WiseFt,
    "lwf": LwF,
    "icarl": ICaRL,
    "zscl": Zscl,
    "sequential": Sequential,
    "joint": Joint,
}
