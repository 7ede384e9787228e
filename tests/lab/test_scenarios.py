"""Streams and questions: disjoint, complete, deterministic, and equal to small cases by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from anytimecl_lab import scenarios
from anytimecl_lab.scenarios import Stage

LABELS = [f"class {i % 7}" for i in range(50)]
TASKS = {"a": range(20), "b": range(20, 31), "c": range(31, 50)}


def streams(seed: int) -> dict[str, list[Stage]]:
    return {
        "data": scenarios.data_incremental(len(LABELS), seed),
        "class": scenarios.class_incremental(LABELS, seed),
        "task": scenarios.task_incremental(TASKS, seed),
        "mtil": scenarios.mtil(TASKS, seed),
    }


@pytest.mark.parametrize("kind", ["data", "class", "task", "mtil"])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_every_example_arrives_once(kind: str, seed: int) -> None:
    arrived = [i for stage in streams(seed)[kind] for i in stage.examples]
    assert sorted(arrived) == list(range(50))


@pytest.mark.parametrize("kind", ["data", "class", "task", "mtil"])
def test_a_seed_is_an_order(kind: str) -> None:
    assert streams(3)[kind] == streams(3)[kind]
    assert streams(3)[kind] != streams(4)[kind]


def test_data_incremental_by_hand() -> None:
    stages = scenarios.data_incremental(200, seed=0)
    assert [stage.name for stage in stages] == "2 %|4 %|8 %|16 %|32 %|64 %|100 %".split("|")
    assert [len(stage.examples) for stage in stages] == [4, 4, 8, 16, 32, 64, 72]


def test_tiny_tasks_have_an_example_in_the_first_stage() -> None:
    stages = scenarios.data_incremental(5, seed=0)
    assert [len(stage.examples) for stage in stages] == [1, 0, 0, 0, 1, 1, 2]


def test_class_incremental_brings_each_class_whole() -> None:
    labels = [f"class {i // 3}" for i in range(30)]  # ten classes of three
    stages = scenarios.class_incremental(labels, seed=0)
    classes = [{labels[i] for i in stage.examples} for stage in stages]
    assert [len(each) for each in classes] == [2] * 5
    assert len(set.union(*classes)) == 10
    assert [len(stage.examples) for stage in stages] == [6] * 5
    assert list(stages[0].examples) != sorted(stages[0].examples)  # not class after class


def test_class_incremental_of_few_classes() -> None:
    stages = scenarios.class_incremental(["a", "b", "a"], seed=0)
    assert sorted(len(stage.examples) for stage in stages) == [0, 0, 0, 1, 2]


def test_few_shot_is_nested_balanced_and_in_random_order() -> None:
    labels = [f"class {i % 3}" for i in range(60)] + ["class 0"] * 5
    stages = scenarios.few_shot(labels, seed=2)
    assert [stage.name for stage in stages] == ["1", "2", "4", "8", "16", "all"]
    for shot, stage in zip((1, 2, 4, 8, 16), stages, strict=False):
        assert Counter(labels[i] for i in stage.examples) == {f"class {y}": shot for y in range(3)}
        assert len(set(stage.examples)) == 3 * shot
    for few, more in pairwise(stages):
        assert set(few.examples) < set(more.examples)
        assert more.examples[: len(few.examples)] != few.examples
    in_order = [labels[i] for i in stages[4].examples]
    assert in_order != sorted(in_order)  # not class after class
    [whole] = scenarios.data_incremental(65, 2, shares=(1.0,))
    assert stages[-1].examples == whole.examples
    assert stages == scenarios.few_shot(labels, seed=2) != scenarios.few_shot(labels, seed=3)


def test_few_shot_leaves_out_what_the_smallest_class_lacks() -> None:
    stages = scenarios.few_shot(["a"] * 20 + ["b"] * 3, seed=0)
    assert [stage.name for stage in stages] == ["1", "2", "all"]


def test_held_out_examples_are_a_share_of_each_class() -> None:
    labels = ["many"] * 100 + ["some"] * 10 + ["two"] * 2 + ["one"]
    kept, asked = scenarios.held_out(labels, 5, 15, seed=0)
    assert Counter(labels[i] for i in asked) == {"many": 15, "some": 2, "two": 1}
    assert sorted(kept + asked) == list(range(113))
    assert (kept, asked) == scenarios.held_out(labels, 5, 15, seed=0)


def test_task_incremental_by_hand() -> None:
    stages = scenarios.task_incremental({"pets": range(8), "food": range(8, 12)}, seed=0)
    assert [stage.name for stage in stages][:5] == [
        "pets 25 %", "pets 50 %", "pets 75 %", "pets 100 %", "food 25 %",
    ]  # fmt: skip
    assert [len(stage.examples) for stage in stages] == [2, 2, 2, 2, 1, 1, 1, 1]
    assert [stage.whole for stage in stages] == [False, False, False, True] * 2
    assert {i for stage in stages[:4] for i in stage.examples} == set(range(8))


def test_mtil_brings_whole_tasks_in_the_order_given() -> None:
    stages = scenarios.mtil(TASKS, seed=0)
    assert [stage.name for stage in stages] == ["a", "b", "c"]
    assert [set(stage.examples) for stage in stages] == [set(each) for each in TASKS.values()]
    assert all(stage.whole for stage in stages)


def test_a_cap_keeps_so_many_of_each_class() -> None:
    chosen = scenarios.capped(LABELS, 3, seed=0)
    assert set(Counter(LABELS[i] for i in chosen).values()) == {3}
    assert chosen == sorted(set(chosen)) == scenarios.capped(LABELS, 3, seed=0)
    assert scenarios.capped(LABELS, None, seed=0) == list(range(50))


def test_a_question_covers_the_whole_task() -> None:
    question = scenarios.whole_task("pets", ["cat", "dog", "cat"], ["cat", "dog", "never seen"])
    assert question.images == (("pets", 0), ("pets", 1), ("pets", 2))
    assert question.candidates == ("cat", "dog", "never seen")


TARGETS = {"pets": ["cat", "dog", "cat"], "food": ["soup", "rose"]}
NOVEL = {"plants": ["rose", "oak", "elm", "oak"], "same": ["cat"]}


def test_zero_shot_leaves_out_what_a_target_task_teaches() -> None:
    [question] = [q for q in scenarios.flexible(TARGETS, NOVEL, 0) if q.kind == "zero-shot"]
    assert question.name == "plants"
    assert question.candidates == ("elm", "oak")
    assert question.images == (("plants", 1), ("plants", 2), ("plants", 3))


def test_union_by_hand() -> None:
    union = [q for q in scenarios.flexible(TARGETS, NOVEL, 0) if q.kind == "union"]
    assert {q.candidates for q in union} == {("cat", "dog", "elm", "oak", "rose", "soup")}
    asked = {q.name: len(q.images) for q in union}
    assert asked == {"pets": 3, "food": 2, "plants": 3}


def test_union_draws_a_hundred_novel_labels() -> None:
    novel = {"many": [f"novel {i}" for i in range(150)]}
    questions = {s: scenarios.flexible(TARGETS, novel, s) for s in (0, 1)}
    for seed in (0, 1):
        *_, last = [q for q in questions[seed] if q.kind == "union"]
        assert len(last.candidates) == 4 + 100
        assert len(last.images) == 100  # of those labels alone
    assert questions[0] != questions[1]
    assert questions[0] == scenarios.flexible(TARGETS, novel, 0)


def test_mix_splits_the_target_labels() -> None:
    targets = {"t": [f"class {i % 10}" for i in range(30)]}
    novel = {"n": ["oak", "elm"]}
    mix = [q for q in scenarios.flexible(targets, novel, 0) if q.kind == "mix"]
    assert len(mix) == 5
    shares = [set(q.candidates) - {"oak", "elm"} for q in mix]
    assert [len(share) for share in shares] == [2] * 5
    assert set.union(*shares) == {f"class {i}" for i in range(10)}
    for question in mix:
        assert {"oak", "elm"} <= set(question.candidates)
        assert len(question.images) == 2 * 3 + 2


def test_mix_as_the_predecessor_asks_it() -> None:
    """A fifth of the target labels, as many novel ones, target images alone."""
    targets = {"t": [f"t{i}" for i in range(10)] * 2}
    novel = {"n": [f"n{i}" for i in range(7)]}
    mix = [q for q in scenarios.flexible(targets, novel, 0) if q.kind == scenarios.THEIRS]
    assert len(mix) == 5
    for question in mix:
        own = {name for name in question.candidates if name.startswith("t")}
        assert (len(own), len(question.candidates)) == (2, 4)
        assert {targets[task][i] for task, i in question.images} == own
        assert {task for task, _ in question.images} == {"t"}
    assert sum(len(question.images) for question in mix) == 20


def test_mix_takes_a_hundred_images_of_a_class() -> None:
    mix = [q for q in scenarios.flexible({"t": ["a"] * 130}, {"n": ["oak"]}, 0) if q.kind == "mix"]
    assert sorted(len(q.images) for q in mix) == [1, 1, 1, 1, 101]
