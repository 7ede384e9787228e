"""What holds of every method, and what each one's paper says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.lab.worlds import CLASSES, NOVEL, asked, world

from anytimecl.blend import BLENDS
from anytimecl.settings import LearnerConfig, Settings
from anytimecl.stream import StreamLearner
from anytimecl_lab.methods import METHODS, Frozen, Method
from anytimecl_lab.methods._batches import Schedule, batches, train
from anytimecl_lab.methods.icarl import ICaRL, herd
from anytimecl_lab.methods.knn import votes
from anytimecl_lab.methods.lwf import LwF
from anytimecl_lab.methods.offline import Offline
from anytimecl_lab.methods.online import Online
from anytimecl_lab.methods.probe import LinearProbe, logistic
from anytimecl_lab.methods.tree import TreeProbe, split
from anytimecl_lab.methods.tuned import Joint, Sequential, distillation
from anytimecl_lab.methods.wise_ft import WiseFt
from anytimecl_lab.methods.zscl import WORDS, Zscl

T = TypeVar("T", bound=Method)
FAST: dict[str, dict[str, Any]] = {
    name: {"epochs": 10, "batch": 8}
    for name in ("offline", "wise-ft", "lwf", "icarl", "zscl", "sequential", "joint")
}
FAST["tree-probe"] = {"capacity": 15}
FAST |= {name: {"features": 256} for name in ("ranpac", "klda", "rail")}
FAST["tip-adapter"] = {"alpha": 50.0}
FAST["offline-paper"] = FAST["fine-tune"] = {"epochs": 3, "batch": 16}
EVERY = {name: kind for name, kind in METHODS.items() if name != "encoder"}  # that has two models
# At the paper's rates a tiny model hardly moves; test_paper and test_encoder show what they learn.
SLOW = ("original", "online", "offline-paper", "fine-tune", "partitions")
PEERS = [name for name, kind in METHODS.items() if issubclass(kind, Frozen)]


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    """Methods are run as the lab runs them."""
    with torch.no_grad():
        yield


def made(name: str, seed: int = 0) -> Method:
    method = METHODS[name](world(seed=seed), **FAST.get(name, {}))
    return quickened(method)


def quickened(method: T) -> T:
    """With steps large enough for a tiny model to show what it learned."""
    if hasattr(method, "schedule"):
        method.schedule = replace(method.schedule, lr=5e-4)
    return method


def taught(name: str, seed: int = 0) -> Method:
    """Learned in two stages: two classes, then the other two."""
    method = made(name, seed)
    order = np.random.default_rng(0).permutation(24).tolist()
    method.learn(order)
    method.learn([24 + i for i in order])
    return method


def accuracy(method: Method) -> float:
    tokens, target = asked()
    return float((method.predict(tokens, CLASSES).argmax(1) == target).float().mean())


# ------------------------------------------------------------------------------- what holds of all


@pytest.mark.parametrize("name", EVERY)
def test_predicts_before_it_learns_as_the_original_does(name: str) -> None:
    tokens, _ = asked()
    expected = made("original").predict(tokens, (*CLASSES, *NOVEL))
    torch.testing.assert_close(made(name).predict(tokens, (*CLASSES, *NOVEL)), expected)


@pytest.mark.parametrize("name", EVERY)
def test_scores_are_finite_and_prediction_is_pure(name: str) -> None:
    method = taught(name)
    tokens, _ = asked()
    for names in (CLASSES, NOVEL, (*NOVEL, *CLASSES), CLASSES[:1]):
        first = method.predict(tokens, names)
        assert first.shape == (20, len(names))
        assert first.isfinite().all()
        assert (first >= 0).all()
        assert torch.equal(first, method.predict(tokens, names))


@pytest.mark.parametrize("name", EVERY)
def test_the_order_of_candidates_does_not_matter(name: str) -> None:
    method = taught(name)
    tokens, _ = asked()
    names = (*NOVEL, *CLASSES)
    forth, back = method.predict(tokens, names), method.predict(tokens, names[::-1])
    torch.testing.assert_close(forth, back.flip(1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_seed_gives_the_same_method(name: str) -> None:
    tokens, _ = asked()
    one, two = (taught(name).predict(tokens, CLASSES) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in SLOW])
def test_learning_helps(name: str) -> None:
    assert accuracy(taught(name)) > accuracy(made("original")) + 0.1


@pytest.mark.parametrize(
    "name", ["original", "online", "offline", "linear-probe", "tree-probe", "knn", *PEERS]
)
def test_labels_never_seen_keep_the_original_answer_exactly(name: str) -> None:
    tokens, _ = asked()
    expected = made("original").predict(tokens, NOVEL)
    assert torch.equal(taught(name).predict(tokens, NOVEL), expected)


def test_the_original_model_is_not_changed_by_anyone() -> None:
    given = world()
    before = {name: value.clone() for name, value in given.tail.items()}
    for name, kind in EVERY.items():
        kind(given, **FAST.get(name, {})).learn([0, 13, 25, 37])
    assert all(torch.equal(value, before[name]) for name, value in given.tail.items())


# ------------------------------------------------------------------------------------- AnytimeCL


def test_online_learning_helps_and_reads_every_blend() -> None:
    given = world()
    method = Online(given, batch=8, etas=(0.5, 0.99))
    told, fast = method.stream.estimates, Settings(learner=LearnerConfig(batch=8, lr=3e-3))
    method.stream = StreamLearner(
        given.spec, given.tail, fast, given.examples, given.labels, given.vectors
    )
    method.stream.model.estimates = told
    order = np.random.default_rng(0).permutation(48).tolist()
    method.learn(order)
    tokens, target = asked()
    read = method.readings(tokens, CLASSES)
    assert set(BLENDS) | {"ocw eta=0.5"} <= set(read)
    assert torch.equal(read[f"{method.default} eta=0.99"], read[method.default])
    assert torch.equal(read["ocw eta=0.99"], read["ocw"])
    tuned, original = ((read[r].argmax(1) == target).float().mean() for r in ("tuned", "original"))
    assert tuned > original + 0.1


def test_another_memory_of_the_estimates_is_what_a_run_with_it_gives() -> None:
    """Against the estimates worked out one by one."""
    method = Online(world(), etas=(0.5,))
    told: list[tuple[str, bool, bool]] = []
    add = method.etas[0].add

    def note(label: str, *, tuned: bool, original: bool) -> None:
        told.append((label, tuned, original))
        add(label, tuned=tuned, original=original)

    method.etas[0].add = note  # type: ignore[method-assign]
    method.learn([0, 1, 2, 13, 14, 3])
    assert [label for label, _, _ in told] == ["ant"] * 3 + ["bee"] * 2 + ["ant"]
    hits = [float(tuned) for label, tuned, _ in told if label == "ant"]
    expected = sum(hits[:2]) / 2  # the first 1 / (1 - 0.5) are a plain mean
    for hit in hits[2:]:
        expected = 0.5 * expected + 0.5 * hit
    assert method.etas[0].of("ant").tuned == pytest.approx(expected)


def test_the_ratio_of_rate_to_batch_is_constant() -> None:
    for size in (8, 256):
        config = Online(world(), batch=size).stream.learner.config
        assert config.lr / size == pytest.approx(9.375e-6 / 32)


def test_the_papers_setting_is_the_papers() -> None:
    method = Online(world(), paper=True)
    config = method.stream.learner.config
    assert (config.scale, config.eager, config.imprint, method.default) == (None, 0, 0, "ocw")
    assert replace(config, scale=35.0, eager=3.0, imprint=1.0) == LearnerConfig()


def test_offline_scores_each_half_of_the_newcomers_by_a_model_trained_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = quickened(Offline(world(), epochs=5, batch=8))
    trained: list[set[int]] = []
    keep = method._trained

    def note(examples: Sequence[int]) -> dict[str, torch.Tensor]:
        trained.append(set(examples))
        return keep(examples)

    monkeypatch.setattr(method, "_trained", note)
    method.learn(list(range(24)))
    method.learn(list(range(24, 48)))
    even, odd = set(range(0, 24, 2)), set(range(1, 24, 2))
    first, everything = set(range(24)), set(range(48))
    later = {i + 24 for i in odd}, {i + 24 for i in even}
    assert trained == [odd, even, first, first | later[0], first | later[1], everything]
    assert method.model.estimates.of("cat").seen == 12


def test_offline_needs_no_two_examples() -> None:
    method = quickened(Offline(world(), epochs=1, batch=8))
    method.learn([0])
    right = method.model.estimates.of(world().labels[0])
    assert (right.seen, right.tuned) == (1, right.original)  # nothing was tuned for it yet


# ------------------------------------------------------------------------------------ fine-tuning


def test_training_is_plain_adamw_down_a_cosine() -> None:
    schedule = Schedule(epochs=3, batch=2, lr=0.01, least=1e-4, weight_decay=0.1)
    data = torch.tensor([1.0, 2.0, 3.0])
    mine = {"w": torch.tensor([0.5])}
    train(mine, lambda leaf, i: ((leaf["w"] * data[i] - 1) ** 2).mean(), [0, 1, 2], schedule, 7)
    w = torch.tensor([0.5], requires_grad=True)
    optimiser = torch.optim.AdamW([w], lr=0.02, weight_decay=0.1)
    for step, chosen in enumerate(batches([0, 1, 2], 2, 3, 7)):
        rate = 1e-4 + (0.02 - 1e-4) * (1 + np.cos(np.pi * step / 6)) / 2
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        with torch.enable_grad():
            ((w * data[chosen] - 1) ** 2).mean().backward()
        optimiser.step()
    torch.testing.assert_close(mine["w"], w.detach())
    assert not mine["w"].requires_grad


def test_joint_training_sees_everything_at_once_and_only_once() -> None:
    joint, all_at_once = Joint(world(), epochs=2), Sequential(world(), epochs=2)
    joint.learn([0, 1])
    all_at_once.learn(world().arriving)
    for name, value in all_at_once.block.items():
        assert torch.equal(joint.block[name], value)
    before = {name: value.clone() for name, value in joint.block.items()}
    joint.learn([2, 3])
    assert all(torch.equal(joint.block[name], value) for name, value in before.items())


def test_wise_ft_averages_weights() -> None:
    method, plain = WiseFt(world(), mix=0.25, epochs=2), Sequential(world(), epochs=2)
    method.learn(list(range(10)))
    plain.learn(list(range(10)))
    for name, value in plain.block.items():
        expected = 0.75 * method.world.tail[name] + 0.25 * value
        torch.testing.assert_close(method._weights()[name], expected)


def test_lwf_without_its_weight_is_sequential() -> None:
    stages = [list(range(24)), list(range(24, 48))]
    method, plain, kept = map(
        quickened,
        (
            LwF(world(), weight=0.0, epochs=3),
            Sequential(world(), epochs=3),
            LwF(world(), weight=50.0, epochs=3),
        ),
    )
    for stage in stages:
        for each in (method, plain, kept):
            each.learn(stage)
    for name, value in plain.block.items():
        torch.testing.assert_close(method.block[name], value)
    tokens, _ = asked()
    first = quickened(LwF(world(), epochs=3))
    first.learn(stages[0])
    before, free, held = (each.predict(tokens, CLASSES[:2]) for each in (first, plain, kept))
    assert (before - held).abs().mean() < (before - free).abs().mean()


def test_distillation_is_least_where_the_teacher_is() -> None:
    teacher = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = F.kl_div(
        (torch.zeros(4, 3) / 2).log_softmax(1), (teacher / 2).softmax(1), reduction="batchmean"
    )
    entropy = -((teacher / 2).softmax(1) * (teacher / 2).log_softmax(1)).sum(1).mean()
    found = distillation(torch.zeros(4, 3), teacher, 2.0)
    torch.testing.assert_close(found, 4 * (expected + entropy))
    assert distillation(teacher, teacher, 2.0) < found


def test_herding_against_every_choice() -> None:
    vectors = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    chosen: list[int] = []
    for size in range(1, 5):  # the next one that brings the mean of the chosen nearest
        left = [i for i in range(7) if i not in chosen]
        gaps = [float((vectors[[*chosen, i]].mean(0) - vectors.mean(0)).norm()) for i in left]
        chosen.append(left[int(np.argmin(gaps))])
        assert herd(vectors, size) == chosen
    assert sorted(herd(vectors, 99)) == list(range(7))


def test_icarl_keeps_few_examples_and_answers_by_their_means() -> None:
    method = quickened(ICaRL(world(), memory=8, epochs=5, batch=8))
    method.learn(list(range(24)))
    assert {name: len(some) for name, some in method.exemplars.items()} == {"ant": 4, "bee": 4}
    method.learn(list(range(24, 48)))
    assert [len(some) for some in method.exemplars.values()] == [2, 2, 2, 2]
    assert all(method.world.labels[i] == y for y, some in method.exemplars.items() for i in some)
    tokens, _ = asked()
    images = method.world.image_vectors(method._weights(), tokens)
    means = torch.stack([method.means[name] for name in CLASSES])
    assert torch.equal(method.predict(tokens, CLASSES).argmax(1), (images @ means.T).argmax(1))
    unseen = Sequential.predict(method, tokens, (*CLASSES, *NOVEL))
    assert torch.equal(method.predict(tokens, (*CLASSES, *NOVEL)), unseen)


def test_a_stage_of_zscl_begins_and_ends_with_a_mean_of_weights() -> None:
    method = Zscl(world(), epochs=2, batch=8)
    steps: list[dict[str, torch.Tensor]] = []
    after = method._after_step

    def note() -> None:
        steps.append({name: value.clone() for name, value in method.block.items()})
        after()

    method._after_step = note  # type: ignore[method-assign]
    for stage in (range(24), range(24, 48)):
        steps[:] = [{name: value.clone() for name, value in method.block.items()}]
        method.learn(list(stage))
        assert len(steps) == 1 + 2 * 3
        for name, value in method._weights().items():
            if name in method.block:
                expected = torch.stack([step[name] for step in steps]).mean(0)
                torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-4)


def test_zscl_distils_images_over_texts_and_texts_over_images() -> None:
    method = Zscl(world(), weight=0.5)
    method.block = {name: 1.1 * value for name, value in method.block.items()}
    method._meet(range(24))
    chosen, scale = [0, 5, 13], method._soft
    texts = method.world.label_vectors(WORDS)
    now = method.world.image_vectors(method._weights(), method.world.take(chosen))
    before = method.world.original_vectors[chosen]
    expected = Sequential._loss(method, method.block, chosen)
    for dim, count in ((1, len(chosen)), (0, len(WORDS))):
        told, teacher = ((scale / 2 * each @ texts.T).softmax(dim) for each in (now, before))
        expected -= 0.5 * 4 * (teacher * told.log()).sum() / count
    torch.testing.assert_close(method._loss(method.block, chosen), expected)


def test_reference_words_are_a_hundred_different_ones() -> None:
    assert len(set(WORDS)) == len(WORDS) == 100


# ------------------------------------------------------------------------------- the predecessor's


def test_the_linear_probe_is_scikit_learns() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    vectors = F.normalize(torch.randn(60, 8, generator=generator), dim=-1)
    targets = torch.arange(60) % 3
    vectors[range(60), targets] += 0.3
    for strength in (1.0, 30.0):
        theirs = linear_model.LogisticRegression(C=strength, tol=1e-8, max_iter=2000)
        theirs.fit(vectors.numpy(), targets.numpy())
        ours = logistic(vectors, targets, 3, strength)(vectors).softmax(1)
        expected = torch.from_numpy(theirs.predict_proba(vectors.numpy())).float()
        torch.testing.assert_close(ours, expected, atol=2e-3, rtol=0)


def test_aim_trusts_the_probe_as_far_as_the_label_is_likely_seen() -> None:
    method = LinearProbe(world())
    method.learn(list(range(24)))  # ants and bees
    tokens, _ = asked()
    names = CLASSES[:3]
    images = method.world.image_vectors(method.world.tail, tokens)
    logits = method.world.spec.logit_scale * images @ method.world.label_vectors(names).T
    original = logits.softmax(1)
    probe = method._scores(images)
    mass = original[:, :2].sum(1, keepdim=True)
    expected = original.clone()
    expected[:, :2] = mass * probe + (1 - mass) * original[:, :2]
    torch.testing.assert_close(method.predict(tokens, names), expected)


def test_neighbours_vote_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = F.normalize(torch.randn(30, 6, generator=generator), dim=-1)
    images = F.normalize(torch.randn(4, 6, generator=generator), dim=-1)
    targets = torch.arange(30) % 5
    found = votes(images, vectors, targets, 5, k=7, warmth=0.1)
    for image, shares in zip(images, found, strict=True):
        likeness = vectors @ image
        nearest = likeness.argsort(descending=True)[:7]
        total = likeness[nearest].div(0.1).exp().sum()
        for label in range(5):
            own = [
                float(likeness[i].div(0.1).exp() / total) for i in nearest if targets[i] == label
            ]
            assert float(shares[label]) == pytest.approx(sum(own), abs=1e-6)


def test_a_tree_holds_every_example_once_and_no_node_too_many() -> None:
    method = TreeProbe(world(), capacity=10)
    for start in range(0, 48, 12):
        method.learn(list(range(start, start + 12)))
        members = torch.cat([leaf.members for leaf in method.leaves])
        assert sorted(members.tolist()) == list(range(start + 12))
        assert max(len(leaf.members) for leaf in method.leaves) <= 10
    assert len(method.leaves) >= 5


def test_a_tree_of_one_node_is_the_linear_probe() -> None:
    tree, probe = TreeProbe(world(), capacity=1000), LinearProbe(world())
    tokens, _ = asked()
    for method in (tree, probe):
        method.learn(list(range(48)))
    torch.testing.assert_close(
        tree.predict(tokens, CLASSES), probe.predict(tokens, CLASSES), atol=1e-5, rtol=1e-4
    )


def test_splitting_finds_two_clusters_and_spares_equals() -> None:
    vectors = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0], [0.0, 0.1]])
    side = split(vectors)
    assert side is not None
    assert (side == side[0]).tolist() == [True, True, False, False, True]
    assert split(torch.ones(4, 2)) is None
