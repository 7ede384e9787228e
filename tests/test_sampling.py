"""Samplers: how often each example comes in the long run, and what a draw costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest
from scipy.stats import chi2_contingency, chisquare

from anytimecl.frequency_weighted import FrequencyWeighted
from anytimecl.sampling import SAMPLERS, ClassBalanced, Fifo, Sampler, Uniform
from anytimecl.testing import check_sampler

UNLIKELY = 1e-3  # the seeds are fixed, so a test that passes goes on passing
Makers = Callable[[], Sampler]


def filled(make: Makers, labels: Iterable[str]) -> Sampler:
    """A sampler whose examples 1, 2, 3, ... have these labels."""
    sampler = make()
    for example, label in enumerate(labels, 1):
        sampler.add(example, label)
    return sampler


def assert_frequencies(drawn: Counter[Any], expected: dict[Any, float]) -> None:
    """A chi-square test against expected shares."""
    assert drawn.keys() <= expected.keys()
    total, shares = sum(drawn.values()), sum(expected.values())
    wanted = [share * total / shares for share in expected.values()]
    found = [drawn[each] for each in expected]
    assert chisquare(found, wanted).pvalue > UNLIKELY, (found, wanted)


# Class-balanced

UNEVEN = ["a"] * 50 + ["b"] * 7 + ["c"] * 20 + ["d"] * 3


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_classes_come_equally_often_and_so_do_the_examples_of_each(count: int) -> None:
    sampler, random = filled(ClassBalanced, UNEVEN), Random(1)
    examples: Counter[int] = Counter()
    for _ in range(4000):
        examples.update(sampler.draw(count, random))
    classes: Counter[str] = Counter()
    for example, times in examples.items():
        classes[UNEVEN[example - 1]] += times
    if count <= 3:  # else every class comes every time, which the next test checks
        assert_frequencies(classes, dict.fromkeys("abcd", 1.0))
    for label in "abcd":
        of_label = {e: examples[e] for e, name in enumerate(UNEVEN, 1) if name == label}
        assert_frequencies(Counter(of_label), dict.fromkeys(of_label, 1.0))


@pytest.mark.parametrize(
    ("count", "classes", "each"), [(1, 1, 1), (3, 3, 1), (4, 4, 1), (9, 4, 2), (31, 4, 7)]
)
def test_equally_many_of_each_class(count: int, classes: int, each: int) -> None:
    """`min(count, classes)` of them, and what does not divide evenly is left out."""
    sampler, random = filled(ClassBalanced, UNEVEN), Random(2)
    for _ in range(200):
        drawn = sampler.draw(count, random)
        found = Counter(UNEVEN[example - 1] for example in drawn)
        assert len(found) == classes
        assert set(found.values()) == {each}
        for label, stored in Counter(UNEVEN).items():
            of_label = [example for example in drawn if UNEVEN[example - 1] == label]
            if stored >= each:  # repeated only where there are too few
                assert len(set(of_label)) == len(of_label)


# Uniform


def test_uniform_draws_everyone_equally_often_and_nobody_twice() -> None:
    sampler, random = filled(Uniform, UNEVEN), Random(3)
    drawn: Counter[int] = Counter()
    for _ in range(4000):
        batch = sampler.draw(7, random)
        assert len(set(batch)) == 7
        drawn.update(batch)
    assert_frequencies(drawn, dict.fromkeys(range(1, 81), 1.0))


# First in, first out


def test_fifo_goes_round_and_round_in_the_order_of_arrival() -> None:
    sampler, random = filled(Fifo, "abcde"), Random(4)
    assert [sampler.draw(2, random) for _ in range(4)] == [[1, 2], [3, 4], [5, 1], [2, 3]]
    sampler.add(6, "f")
    assert sampler.draw(4, random) == [4, 5, 6, 1]
    assert sampler.draw(9, random) == [2, 3, 4, 5, 6, 1]  # everyone once, nobody twice
    sampler.remove(3, "c")  # not yet due
    assert sampler.draw(3, random) == [2, 4, 5]
    sampler.remove(4, "d")  # already past
    assert sampler.draw(2, random) == [6, 1]


@pytest.mark.parametrize("gone", range(1, 6))
@pytest.mark.parametrize("past", range(6))
def test_fifo_loses_nobodys_turn_when_one_is_removed(past: int, gone: int) -> None:
    sampler, random = filled(Fifo, "abcde"), Random(4)
    sampler.draw(past, random)
    due = [1, 2, 3, 4, 5][past % 5 :] + [1, 2, 3, 4, 5][: past % 5]
    sampler.remove(gone, "abcde"[gone - 1])
    due.remove(gone)
    assert [sampler.draw(1, random)[0] for _ in range(8)] == (due * 2)[:8]


def test_after_the_last_in_line_is_removed_the_next_round_begins() -> None:
    sampler, random = filled(Fifo, "abcde"), Random(4)
    sampler.draw(4, random)
    sampler.remove(5, "e")  # whose turn it was
    assert sampler.state() == {"next": 1}
    sampler.add(6, "f")
    assert [sampler.draw(1, random)[0] for _ in range(6)] == [1, 2, 3, 4, 6, 1]


# Frequency-weighted


class SlowFrequencyWeighted:
    """The paper's words: draw in proportion to w, then w = max(w * xi, w_min)."""

    def __init__(self, xi: float, least: float) -> None:
        self.weights: dict[int, float] = {}
        self.xi, self.least = xi, least

    def add(self, example: int, label: str) -> None:
        self.weights[example] = max(self.xi, self.least)  # its own batch was its first

    def draw(self, count: int, random: Random) -> list[int]:
        left, drawn = dict(self.weights), []
        for _ in range(min(count, len(left))):
            example = random.choices(list(left), list(left.values()))[0]
            drawn.append(example)
            del left[example]
        for example in drawn:
            self.weights[example] = max(self.weights[example] * self.xi, self.least)
        return drawn


def weights_of(sampler: FrequencyWeighted) -> dict[int, float]:
    return {
        example: weight
        for weight, bucket in zip(sampler._weights, sampler._buckets, strict=True)
        for example in bucket
    }


@pytest.mark.parametrize(("xi", "least"), [(0.99, 0.01), (0.5, 0.05)])
def test_weights_follow_the_number_of_draws(xi: float, least: float) -> None:
    sampler, random, times = FrequencyWeighted(xi, least), Random(5), Counter[int]()
    for example in range(1, 13):
        sampler.add(example, "a")
    for _ in range(800):
        times.update(sampler.draw(3, random))
    for example, weight in weights_of(sampler).items():
        slow = 1.0
        for _ in range(1 + times[example]):  # and once in the batch that it came with
            slow = max(slow * xi, least)
        assert weight == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize(("xi", "least"), [(1, 0.01), (0.99, 0), (float("nan"), 0.01)])
def test_weights_that_never_reach_the_least_are_refused(xi: float, least: float) -> None:
    with pytest.raises(ValueError, match="xi lies below 1"):
        FrequencyWeighted(xi, least)
    assert FrequencyWeighted(1, 1).draw(3, Random(0)) == []  # all alike


@pytest.mark.parametrize(("xi", "least"), [(0.8, 0.1), (0.5, 0.2)])
def test_draws_are_distributed_as_in_a_slow_simulation(xi: float, least: float) -> None:
    """Four old examples have been drawn for long when two young ones come: who is drawn next?"""

    def young_ones_drawn(
        make: type[FrequencyWeighted] | type[SlowFrequencyWeighted],
    ) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for seed in range(2000):
            sampler, random = make(xi, least), Random(f"{make.__name__} {seed}")
            for example in range(1, 5):
                sampler.add(example, "a")
            for _ in range(12):
                sampler.draw(2, random)
            for example in (5, 6):
                sampler.add(example, "a")
            batches = [sampler.draw(2, random) for _ in range(2)]
            found[tuple(sum(example > 4 for example in batch) for batch in batches)] += 1
        return found

    fast, slow = young_ones_drawn(FrequencyWeighted), young_ones_drawn(SlowFrequencyWeighted)
    outcomes = sorted(outcome for outcome in fast | slow if slow[outcome] >= 5)
    assert len(outcomes) >= 4
    table = [[counter[outcome] for outcome in outcomes] for counter in (fast, slow)]
    assert chi2_contingency(table).pvalue > UNLIKELY, table


def test_seldom_drawn_examples_catch_up() -> None:
    """Half the memory is old; the chances of one draw are those of the weights."""
    sampler = FrequencyWeighted(xi=0.5, least=0.05)
    for example in range(1, 5):
        sampler.add(example, "a")
    for _ in range(3):
        sampler.draw(4, Random(6))  # all of them, three times
    for example in range(5, 9):
        sampler.add(example, "a")
    state = sampler.state()
    drawn: Counter[int] = Counter()
    for seed in range(8000):
        again = filled(lambda: FrequencyWeighted(0.5, 0.05), "aaaaaaaa")
        again.restore(json.loads(json.dumps(state)))
        drawn.update(again.draw(1, Random(seed)))
    assert_frequencies(drawn, {e: 0.0625 if e < 5 else 0.5 for e in range(1, 9)})


def test_a_frequency_weighted_batch_holds_nobody_twice() -> None:
    sampler, random = filled(FrequencyWeighted, "aaaaaaaaaa"), Random(7)
    for _ in range(300):
        batch = sampler.draw(6, random)
        assert len(set(batch)) == 6
    assert sorted(sampler.draw(99, random)) == list(range(1, 11))


# All of them


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_keeps_what_is_promised(name: str) -> None:
    check_sampler(SAMPLERS[name])


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_removed_is_never_drawn_and_all_else_is(name: str) -> None:
    sampler, random = filled(SAMPLERS[name], UNEVEN), Random(8)
    for _ in range(20):
        sampler.draw(9, random)
    gone = [*range(1, 51, 2), 52, 78, 79, 80]  # half of a, one of b, all of d
    for example in gone:
        sampler.remove(example, UNEVEN[example - 1])
    drawn = {example for _ in range(600) for example in sampler.draw(9, random)}
    assert drawn == set(range(1, 81)) - set(gone)
    for example in sorted(drawn):
        sampler.remove(example, UNEVEN[example - 1])
    assert sampler.draw(9, random) == []
    sampler.add(81, "d")
    assert set(sampler.draw(9, random)) == {81}


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - {"fifo"}))
def test_another_generator_gives_other_draws(name: str) -> None:
    draws = [filled(SAMPLERS[name], UNEVEN).draw(9, Random(seed)) for seed in (1, 2)]
    assert draws[0] != draws[1]


# What a draw costs


class CountingList(list[Any]):
    """A list that counts how often it is looked into; walking along it costs its length."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        CountingList.looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> Any:
        CountingList.looks += len(self)
        return super().__iter__()

    def __contains__(self, value: object) -> bool:
        CountingList.looks += len(self)
        return super().__contains__(value)

    def index(self, *args: Any) -> int:
        CountingList.looks += len(self)
        return super().index(*args)

    def copy(self) -> list[Any]:
        CountingList.looks += len(self)
        return super().copy()


class CountingDict(dict[Any, Any]):
    """The same for a dictionary."""

    def __getitem__(self, key: Any) -> Any:
        CountingList.looks += 1
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        CountingList.looks += len(self)
        return super().__iter__()

    def keys(self) -> Any:
        CountingList.looks += len(self)
        return super().keys()

    values = items = keys


def counted(value: Any) -> Any:
    """The same containers, counting."""
    if isinstance(value, dict):
        return CountingDict({key: counted(inner) for key, inner in value.items()})
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [counted(inner) for inner in value]  # buckets: their number is fixed
    return CountingList(value) if isinstance(value, list) else value


@pytest.mark.parametrize("labels", [3, 100])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_draw_costs_the_same_however_many_are_stored(name: str, labels: int) -> None:
    def cost(size: int) -> tuple[int, int]:
        sampler = filled(SAMPLERS[name], (f"label {e % labels}" for e in range(size)))
        for field, value in vars(sampler).items():
            setattr(sampler, field, counted(value))
        random, asked = Random(12), 0

        class CountingRandom(Random):
            def getrandbits(self, k: int) -> int:
                nonlocal asked
                asked += 1
                return random.getrandbits(k)

        CountingList.looks = 0
        for _ in range(20):
            assert len(sampler.draw(31, CountingRandom())) >= 30
        return CountingList.looks, asked

    small, large = cost(1_000), cost(100_000)
    assert small[0] > 20 * 30  # it is counting
    assert large[0] <= 1.5 * small[0]
    assert large[1] <= 1.5 * small[1] + 100
