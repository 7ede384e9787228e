"""A tree with one leaf is the classifier; a split loses nothing and leaves the others alone."""

from __future__ import annotations

import math
import threading
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests import helpers
from tests.backbone import tiny
from torch import Tensor

from anytimecl.errors import KeyUsedError, LabelError, ModelError, StoreError
from anytimecl.experts.gaussian import FIXED
from anytimecl.model import Model
from anytimecl.scale import tree as trees
from anytimecl.scale.leaf import Leaf, LeafAnswer, LeafLesson, image_vectors
from anytimecl.scale.leaves import Here, Unreachable
from anytimecl.scale.pending import PENDING
from anytimecl.scale.routes import Routes, nearer, two_means
from anytimecl.scale.tree import TreeClassifier
from anytimecl.scale.tree_predicting import NEARNESS
from anytimecl.trainer import Learned

COUNT = 40
MODEL = helpers.model()


def grown(folder: Path, count: int = COUNT, **options: Any) -> TreeClassifier:
    """A tree that has learned so many lessons."""
    tree = opened(folder, **options)
    for number in range(count):
        tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
    tree.settle()  # a leaf that is full splits beside what goes on
    return tree


def opened(folder: Path, **options: Any) -> TreeClassifier:
    options = {"model": helpers.model(), "settings": helpers.settings(), **options}
    return TreeClassifier.open(folder, **options)


def leaf(tree: TreeClassifier, number: int) -> Leaf:
    assert isinstance(tree.leaves, Here)
    return tree.leaves._use(number)


def keys(tree: TreeClassifier) -> list[str]:
    """Of every stored example, in every leaf."""
    found = []
    for number in tree.routes.leaves():
        memory = leaf(tree, number).memory
        ids = [example for example, _ in memory.ids()]
        found += [str(row.key) for _, row in memory.rows(ids)]
    return sorted(found)


def test_a_model_that_could_never_answer_is_refused_before_it_is_taught(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="knows images only"):
        opened(tmp_path / "tree", model=tiny.dinov2(tmp_path / "model"))
    assert not list((tmp_path / "tree").glob("leaf-*"))


def test_a_lesson_that_is_refused_leaves_no_label(tmp_path: Path) -> None:
    with opened(tmp_path) as tree:
        tree.learn_one(helpers.picture(0), "cat", key="a")
        for label in ("dog", "cat"):
            with pytest.raises(KeyUsedError):
                tree.learn_one(helpers.picture(1), label, key="a")
        assert tree.labels == ["cat"]


def test_a_late_retry_brings_no_label_back(tmp_path: Path) -> None:
    with opened(tmp_path) as tree:
        tree.learn_one(helpers.picture(0), "cat", key="older")
        tree.learn_one(helpers.picture(0), "dog", key="newer")
        tree.learn_one(helpers.picture(0), "cat", key="older")
        assert tree.labels == ["dog"] == list(tree.stats())


def test_a_label_goes_with_its_last_example(tmp_path: Path) -> None:
    with grown(tmp_path, 14, capacity=6) as tree:
        tree.capacity, tree._limit = None, dict.fromkeys(tree._limit, None)
        places: dict[int, int] = {}
        for number in range(100, 140):  # one picture for each leaf
            vector = image_vectors(tree.backbone, tree.encode([helpers.picture(number)]))[0]
            places.setdefault(tree.routes.leaf_of(vector), number)
        assert len(places) > 1
        for number in places.values():
            tree.learn_one(helpers.picture(number), "okapi")
        tree._split(next(iter(places)))
        for number in places.values():
            assert "okapi" in tree.labels
            tree.learn_one(helpers.picture(number), "cat")
        assert "okapi" not in tree.labels
        told = tree.labels
    with opened(tmp_path) as tree:
        assert sorted(tree.labels) == sorted(told)


def test_one_leaf_is_the_classifier_bit_for_bit(tmp_path: Path) -> None:
    single = helpers.taught(range(COUNT))
    with opened(tmp_path) as tree:
        for number in range(COUNT):
            image, label = helpers.lesson(number)
            assert tree.learn_one(image, label).id == number + 1
        assert not helpers.differing(helpers.knowledge(single), helpers.knowledge(leaf(tree, 0)))
        asked = [helpers.picture(number) for number in range(100, 110)]
        labels = [*helpers.LABELS, "never seen"]
        for one, other in zip(
            tree.predict(asked, labels), single.predict(asked, labels), strict=True
        ):
            assert (one.label, one.probabilities) == (other.label, other.probabilities)
            assert (one.tuned, one.none_of_these) == (other.tuned, other.none_of_these)
            assert not one.degraded
        assert tree.labels == single.labels
        again = helpers.lesson(3)[0]  # an image that is known has one label, the last one
        for classifier in (single, tree):
            assert classifier.learn_one(again, "great white shark").replaced
            assert len(classifier) == COUNT
        one, other = (each.predict(again, labels) for each in (tree, single))
        assert (one.label, one.probabilities) == (other.label, other.probabilities)


def test_splits_lose_no_example(tmp_path: Path) -> None:
    with grown(tmp_path, capacity=6) as tree:
        assert len(tree.routes.leaves()) > 4
        assert len(tree) == COUNT
        assert keys(tree) == sorted(f"lesson {number}" for number in range(COUNT))
        for number in tree.routes.leaves():
            assert 0 < len(leaf(tree, number)) <= 6


# What is kept of single examples and labels; the rest a child has from its parent.
OF_EXAMPLES = {"evidence", "gaussian", "instance", "vectors"}


def test_a_split_changes_no_other_leaf(tmp_path: Path) -> None:
    with grown(tmp_path, 24, capacity=10) as tree:
        before = {n: helpers.knowledge(leaf(tree, n)) for n in tree.routes.leaves()}
        assert len(before) > 1
        splitting = max(before, key=lambda n: len(leaf(tree, n)))
        weights = before[splitting]["tensors"]
        labels = leaf(tree, splitting).labels
        tree._split(splitting)
        new = sorted(set(tree.routes.leaves()) - set(before))
        assert len(new) == 2
        for number in set(before) - {splitting}:
            assert not helpers.differing(before[number], helpers.knowledge(leaf(tree, number)))
        for number in new:  # children go on from the parent's weights
            learned = helpers.knowledge(leaf(tree, number))["tensors"]
            differ = helpers.changed(weights, learned)
            assert {name.split(".")[0] for name in differ} <= OF_EXAMPLES
        assert {y for n in new for y in leaf(tree, n).labels} == set(labels)


def test_children_keep_their_share_of_the_evidence(tmp_path: Path) -> None:
    with grown(tmp_path, 20, model=helpers.measured()) as tree:
        parent = leaf(tree, 0)
        model = parent._trainer.model
        was = {label: vars(model.estimates.of(label)) for label in tree.labels}
        key_of = keys_by_number(parent)
        seen = {key_of[one.example]: one for one in model.evidence}
        kept = {key_of[example]: image for example, image in images_kept(model)}
        assert kept  # some were surprises
        tree._split(0)
        for number in tree.routes.leaves():
            child = leaf(tree, number)
            own = keys_by_number(child)
            mine = child._trainer.model
            for label in child.labels:
                assert vars(mine.estimates.of(label)) == was[label]
            assert [one.example for one in mine.evidence] == sorted(own)
            for one in mine.evidence:
                before = seen[own[one.example]]
                assert one.label == before.label
                assert torch.equal(one.tuned, before.tuned)
            for example, image in images_kept(mine):
                assert torch.equal(image, kept.pop(own[example]))
        assert not kept


def keys_by_number(its: Leaf) -> dict[int, str | None]:
    numbers = [example for example, _ in its.memory.ids()]
    return {example: row.key for example, row in its.memory.rows(numbers)}


def images_kept(model: Model) -> list[tuple[int, Tensor]]:
    state = model.instances.state()
    return list(zip(state["instance.examples"].tolist(), state["instance.images"], strict=True))


def test_children_count_their_own_examples(tmp_path: Path) -> None:
    with grown(tmp_path, 10) as tree:
        tree._split(0)
        for number in tree.routes.leaves():
            child = leaf(tree, number)
            names = [label for _, label in child.memory.ids()]
            _, vectors = child.vectors()
            now = child._trainer.model.gaussian.now
            for row, label in enumerate(child._trainer.labels):
                mine = vectors[[i for i, its in enumerate(names) if its == label]].double()
                torch.testing.assert_close(
                    now.sums[row].double() / FIXED, mine.sum(0), atol=1e-4, rtol=0
                )
                assert now.counts[row] == len(mine)


def test_an_example_is_found_again_after_splits(tmp_path: Path) -> None:
    with grown(tmp_path, capacity=6) as tree:
        for number in range(COUNT):  # the same keys teach nothing twice
            tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
        assert len(tree) == COUNT


def test_a_tree_resumes(tmp_path: Path) -> None:
    asked = [helpers.picture(number) for number in range(100, 106)]
    with grown(tmp_path, capacity=8) as tree:
        leaves, labels = tree.routes.leaves(), set(tree.labels)
        told = [one.probabilities for one in tree.predict(asked, helpers.LABELS)]
    with opened(tmp_path, capacity=8) as tree:
        assert (tree.routes.leaves(), set(tree.labels), len(tree)) == (leaves, labels, COUNT)
        assert [one.probabilities for one in tree.predict(asked, helpers.LABELS)] == told


def test_sleeping_leaves_are_the_same_leaves(tmp_path: Path) -> None:
    asked = [helpers.picture(number) for number in range(100, 106)]
    told = []
    for awake in (None, 1):
        made = lambda *given, awake=awake: Here(*given, awake=awake)  # noqa: E731
        with grown(tmp_path / str(awake), capacity=8, leaves=made) as tree:
            told.append([one.probabilities for one in tree.predict(asked, helpers.LABELS)])
            assert isinstance(tree.leaves, Here)
            if awake:
                assert len(tree.leaves._open) == 1
    assert told[0] == told[1]


def test_a_sleeping_leaf_answers_nearly_as_it_would_awake(tmp_path: Path) -> None:
    asked = MODEL.encode([helpers.picture(number) for number in range(100, 106)])
    vectors = MODEL.embed_labels(helpers.LABELS)
    rank = min(MODEL.spec.tail.width, 64)
    leaves = Here(tmp_path, MODEL, helpers.settings(), awake=1, rank=rank)
    leaves.start([0, 1])
    for number in range(20):
        image, label = helpers.lesson(number)
        record = leaves._use(0)._codec.encode(MODEL.encode([image])[0])
        leaves.teach(0, LeafLesson(record, label)).result()
    awake = leaves.ask(0, asked, helpers.LABELS, vectors).result()
    leaves.teach(1, LeafLesson(record, "cat")).result()  # puts the first to sleep
    assert list(leaves._open) == [1]
    asleep = leaves.ask(0, asked, helpers.LABELS, vectors).result()
    assert list(leaves._open) == [1]  # nobody was woken
    torch.testing.assert_close(asleep.values, awake.values, atol=5e-3, rtol=0)
    assert not torch.equal(asleep.opinions.tuned, asleep.opinions.original)
    leaves.teach(0, LeafLesson(record, "cat")).result()
    assert list(leaves._open) == [0]
    assert 0 not in leaves._asleep
    leaves.close()


def test_images_that_are_all_alike_stay_together(tmp_path: Path) -> None:
    with opened(tmp_path, capacity=3) as tree:
        record = tree.codec.encode(tree.encode([helpers.picture(0)])[0])
        for turn in range(8):  # edges do not say that it is the same image
            tree.learn_record(record, helpers.LABELS[turn % 2])
        assert (tree.routes.leaves(), len(tree)) == ([0], 8)


class Watched(Here):
    """Leaves that note who is asked about how many images."""

    asked: ClassVar[list[tuple[int, int]]] = []

    def ask(self, leaf: int, tokens: Tensor, *rest: Any) -> Future[LeafAnswer]:
        self.asked.append((leaf, len(tokens)))
        return super().ask(leaf, tokens, *rest)


def test_near_leaves_share_an_answer_and_no_other_is_asked(tmp_path: Path) -> None:
    with grown(tmp_path, capacity=8, leaves=Watched) as tree:
        assert len(tree.routes.leaves()) > 3
        pictures = [helpers.picture(n) for n in range(5)]
        tokens = tree.encode(pictures)
        vectors = image_vectors(MODEL, tokens)
        labels = MODEL.embed_labels(helpers.LABELS)
        for near in (1, 2):
            tree.near = near
            Watched.asked.clear()
            found = tree.predict(pictures, helpers.LABELS)
            matter = [tree.routes.near(vector, near) for vector in vectors]
            expected = Counter(number for its in matter for number, _ in its)
            told = Counter[int]()
            for number, images in Watched.asked:
                told[number] += images
            assert told == expected  # each image is sent to its leaves and to no other
            for image, (one, its) in enumerate(zip(found, matter, strict=True)):
                assert one.leaves == tuple(number for number, _ in its)
                assert len(its) == near
                slow, whole = torch.zeros(len(helpers.LABELS)), 0.0
                for number, distance in its:  # nearer leaves count more
                    weight = math.exp(-distance / NEARNESS)
                    alone = leaf(tree, number).answer(tokens[[image]], helpers.LABELS, labels)
                    slow, whole = slow + weight * alone.values[0], whole + weight
                said = torch.tensor(list(one.probabilities.values()))
                torch.testing.assert_close(said, slow / whole)


class Stuck(Here):
    """Leaves that never finish a lesson, until the test says so."""

    sent: ClassVar[list[Future[Learned]]] = []

    def teach(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        self.sent.append(Future())
        return self.sent[-1]

    def finish(self) -> None:
        self.sent.pop(0).set_exception(Unreachable("it never answered"))


def test_a_teacher_waits_for_a_leaf_that_never_answers_and_nobody_else_does(tmp_path: Path) -> None:
    tree = opened(tmp_path, leaves=Stuck)
    assert isinstance(tree.leaves, Stuck)
    record = tree.codec.encode(tree.encode([helpers.picture(0)])[0])
    for _ in range(PENDING):
        tree.submit(record, "cat")
    waiting = threading.Thread(target=tree.submit, args=(record, "cat"))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    assert len(Stuck.sent) == PENDING
    assert tree.predict(helpers.picture(0), ["cat", "dog"]).label in ("cat", "dog")
    assert len(tree.health()) == 1
    tree.leaves.finish()  # one place is free
    waiting.join(5)
    assert not waiting.is_alive()
    assert len(Stuck.sent) == PENDING
    while Stuck.sent:
        tree.leaves.finish()
    tree.close()


def test_forgetting_a_label_reaches_every_leaf(tmp_path: Path) -> None:
    with grown(tmp_path, capacity=8) as tree:
        count = sum(helpers.lesson(n)[1] == "cat" for n in range(COUNT))
        assert tree.forget(label="cat") == count
        assert len(tree) == COUNT - count
        assert "cat" not in tree.labels


def test_one_leaf_consolidates_and_tells_its_stats_as_the_classifier_does(tmp_path: Path) -> None:
    single = helpers.taught(range(12))
    with grown(tmp_path, 12) as tree:
        assert tree.stats() == single.stats()
        single.consolidate(epochs=2)
        tree.consolidate(epochs=2)
        assert not helpers.differing(helpers.knowledge(single), helpers.knowledge(leaf(tree, 0)))


def test_every_leaf_consolidates_and_counts(tmp_path: Path) -> None:
    with grown(tmp_path, 24, capacity=10) as tree:
        before = {n: helpers.knowledge(leaf(tree, n)) for n in tree.routes.leaves()}
        assert len(before) > 1
        tree.consolidate(epochs=1)
        for number, knew in before.items():
            assert helpers.changed(
                knew["tensors"], helpers.knowledge(leaf(tree, number))["tensors"]
            )
        counts = {label: known.examples for label, known in tree.stats().items()}
        taught = [helpers.lesson(n)[1] for n in range(24)]
        assert counts == {label: taught.count(label) for label in set(taught)}


def test_refusals(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as tree:
        with pytest.raises(LabelError, match="not among its candidates"):
            tree.learn_one(helpers.picture(0), "cat", candidates=["dog"])
        with pytest.raises(LabelError, match="Nothing is learned"):
            tree.predict(helpers.picture(0))
        with pytest.raises(StoreError):
            tree.learn_record(b"not a record", "cat")
        with pytest.raises(LabelError, match="cannot be taught"):
            tree.learn_one(helpers.picture(0), "None of these")
        with pytest.raises(LabelError, match="leave it out"):
            tree.predict(helpers.picture(0), ["cat", "none of these"])
        for key in (5, ["a"], ("a",)):
            with pytest.raises(TypeError, match="A key is text"):
                tree.learn_one(helpers.picture(0), "cat", key=key)  # type: ignore[arg-type]
        for example in ("ab", (helpers.picture(0),), (helpers.picture(0), "cat", "key", "more")):
            with pytest.raises(TypeError, match=r"An example is .image, label. or"):
                tree.learn_many([example])  # type: ignore[list-item]
        with pytest.raises(ModelError, match="Tokens are a tensor"):
            tree.predict_tokens(torch.zeros(2, 3, 4), ["cat"])
        assert len(tree) == 0
    for wrong, told in (({"near": 0}, "one leaf"), ({"capacity": 0}, "one example")):
        with pytest.raises(ValueError, match=f"At least {told}|at least {told}"):
            opened(tmp_path / "a", **wrong)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file: a tree is a folder"):
        opened(tmp_path / "file")
    with pytest.raises(StoreError, match="home folder"):
        opened(Path("~/tree"))
    with pytest.raises(StoreError, match="another model"):
        opened(tmp_path / "a", model=helpers.model(seed=1))
    with pytest.raises(ModelError, match="keeps images"):
        opened(tmp_path / "b", settings=helpers.settings(codec="image"))
    (tmp_path / "a" / trees.FILE).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="not a whole tree"):
        opened(tmp_path / "a")


def test_a_closed_tree_says_so_and_opens_no_leaf_again(tmp_path: Path) -> None:
    tree = grown(tmp_path, 4)
    tree.close()
    tree.close()
    for use in (
        lambda: tree.learn_one(helpers.picture(9), "cat"),
        lambda: tree.predict(helpers.picture(9), ["cat"]),
        lambda: tree.forget(label="cat"),
        lambda: tree.snapshot(tmp_path / "copy"),
        tree.consolidate,
        tree.verify,
        tree.stats,
        lambda: len(tree),
    ):
        with pytest.raises(StoreError, match="The tree is closed: open it again"):
            use()
    with opened(tmp_path) as again:  # which another process could do as well
        assert len(again) == 4


def test_a_tree_stays_in_its_folder_when_its_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with opened(Path("tree"), capacity=6) as tree:
        monkeypatch.chdir(tmp_path / "elsewhere")
        for number in range(8):
            tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
        tree.settle()
        assert len(tree.routes.leaves()) > 1
    assert not list((tmp_path / "elsewhere").iterdir())


def test_two_means_puts_each_vector_with_the_nearer_centre() -> None:
    noise = torch.Generator().manual_seed(0)
    vectors = torch.randn(50, 3, generator=noise)
    halves = two_means(vectors)
    assert halves is not None
    distances = torch.cdist(vectors, halves.centres)
    assert torch.equal(halves.side, (distances[:, 1] < distances[:, 0]).long())
    alone = torch.stack([nearer(vector, halves.centres) for vector in vectors])
    assert torch.equal(halves.side, alone)


def test_every_leaf_of_a_deep_tree_is_reached(tmp_path: Path) -> None:
    routes, first = Routes.single(2).split(0, torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    routes, _ = routes.split(first[1], torch.tensor([[4.0, 0.0], [4.0, 4.0]]))
    found = [routes.leaf_of(torch.tensor(v)) for v in ([0.0, 1.0], [4.0, 1.0], [4.0, 3.0])]
    assert sorted(found) == routes.leaves() == [1, 3, 4]
    routes.save(tmp_path / "tree", {"note": "x"})
    again, told = Routes.load(tmp_path / "tree")
    assert (again.leaves(), again.next_leaf, told) == ([1, 3, 4], 5, {"note": "x"})
    assert routes.near(torch.tensor([4.0, 3.0]), 2)[0] == (4, 1.0)


def test_near_gives_the_leaf_alone_or_the_nearest_in_order() -> None:
    routes, first = Routes.single(2).split(0, torch.tensor([[0.0, 0.0], [4.0, 0.0]]))
    routes, _ = routes.split(first[1], torch.tensor([[4.0, 0.0], [4.0, 4.0]]))
    vector = torch.tensor([3.0, 1.0])
    assert routes.near(vector, 1) == [(routes.leaf_of(vector), 0.0)]
    assert [leaf for leaf, _ in routes.near(vector, 9)] == [3, 1, 4]
    assert [round(away**2, 4) for _, away in routes.near(vector, 9)] == [2.0, 10.0, 10.0]


class Busy(Here):
    """Leaves of which one consolidates until the test says so."""

    begun, go_on = threading.Event(), threading.Event()

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        if method == "consolidate":
            self.begun.set()
            assert self.go_on.wait(60)
        return super().call(leaf, method, *args)


def test_lessons_of_other_leaves_go_on_beside_a_consolidation(tmp_path: Path) -> None:
    with grown(tmp_path, 24, capacity=10, leaves=Busy) as tree:
        busy = tree.routes.leaves()[0]
        of = {n: tree.routes.leaf_of(vector_of(tree, n)) for n in range(200, 240)}
        mine = next(n for n, its in of.items() if its == busy)
        other = next(n for n, its in of.items() if its != busy)
        working = threading.Thread(target=tree.consolidate, args=(1,))
        working.start()
        assert Busy.begun.wait(60)
        tree.learn_one(*helpers.lesson(other))  # waits for nobody
        waiting = threading.Thread(target=tree.learn_one, args=helpers.lesson(mine))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        Busy.go_on.set()
        working.join()
        waiting.join()
        assert len(tree) == 26


def vector_of(tree: TreeClassifier, number: int) -> Tensor:
    return image_vectors(MODEL, tree.encode([helpers.lesson(number)[0]]))[0]
