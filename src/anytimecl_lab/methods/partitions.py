"""The paper's partitions: a tuned block for each partition of the feature space."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anytimecl.scale.tree_stream import LeafStream, TreeStream
from anytimecl.settings import LearnerConfig
from anytimecl.tail import TailInput
from anytimecl_lab.methods._base import Method
from anytimecl_lab.methods._paper import PaperLearner, chosen, inputs
from anytimecl_lab.world import World


class PaperLeaf(LeafStream):
    """A partition in the paper's setting."""

    learner_type = PaperLearner


class PaperTree(TreeStream):
    """The tree of partitions."""

    leaf_type = PaperLeaf


class Partitions(Method):
    """Partitions of the feature space, by the original model's image embedding.

    A partition with more than `capacity` examples is split in two by k-means, and each half starts
    from its weights. None: one model, however many examples.
    """

    online = True

    def __init__(self, world: World, *, capacity: int | None = None, paper: bool = False) -> None:
        super().__init__(world)
        settings = chosen(LearnerConfig(), world.seed, paper=paper)
        self.default = settings.name_of("blend")
        self.tree = (PaperTree if paper else TreeStream)(
            *inputs(world, settings, paper=paper), world.original_vectors, capacity, world.prior
        )

    def learn(self, examples: Sequence[int]) -> None:
        """One online step per example, in its partition."""
        self.tree.learn(examples)

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """The default blend of each image's partition."""
        images = self.world.image_vectors(self.world.tail, tokens)
        return self.tree.answers([(tokens, images)], names, self.default)
