"""Methods with one interface: learn the examples of a stage, predict over any labels."""

from __future__ import annotations

from anytimecl_lab.methods._base import Method
from anytimecl_lab.methods._frozen import Frozen, OnEmbeddings
from anytimecl_lab.methods.class_mean import ClassMean
from anytimecl_lab.methods.encoder import JoinedEncoder
from anytimecl_lab.methods.gda import Gda
from anytimecl_lab.methods.icarl import ICaRL
from anytimecl_lab.methods.klda import Klda
from anytimecl_lab.methods.knn import NearestNeighbours
from anytimecl_lab.methods.logistic import Logistic
from anytimecl_lab.methods.lwf import LwF
from anytimecl_lab.methods.offline import Offline, PaperOffline
from anytimecl_lab.methods.online import Online
from anytimecl_lab.methods.original import Original
from anytimecl_lab.methods.partitions import Partitions
from anytimecl_lab.methods.probe import LinearProbe
from anytimecl_lab.methods.rail import Rail
from anytimecl_lab.methods.ranpac import RanPac
from anytimecl_lab.methods.slda import Slda
from anytimecl_lab.methods.tip_adapter import TipAdapter
from anytimecl_lab.methods.tree import TreeProbe
from anytimecl_lab.methods.tuned import FineTune, Joint, Sequential
from anytimecl_lab.methods.wise_ft import WiseFt
from anytimecl_lab.methods.zscl import Zscl

__all__ = ["METHODS", "Frozen", "JoinedEncoder", "Method", "OnEmbeddings"]

METHODS: dict[str, type[Method]] = {
    "original": Original,
    "online": Online,
    "offline": Offline,
    "offline-paper": PaperOffline,
    "encoder": JoinedEncoder,
    "partitions": Partitions,
    "fine-tune": FineTune,
    "linear-probe": LinearProbe,
    "tree-probe": TreeProbe,
    "knn": NearestNeighbours,
    "wise-ft": WiseFt,
    "lwf": LwF,
    "icarl": ICaRL,
    "zscl": Zscl,
    "sequential": Sequential,
    "joint": Joint,
    "class-mean": ClassMean,
    "slda": Slda,
    "gda": Gda,
    "klda": Klda,
    "ranpac": RanPac,
    "rail": Rail,
    "tip-adapter": TipAdapter,
    "logistic": Logistic,
}
