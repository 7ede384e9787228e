"""Examples that are brought batch by batch give what resident ones give, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec import tiny_tail
from tests.lab.conftest import write_recipe
from tests.lab.worlds import CLASSES, asked, tokens_of, world

from anytimecl.stream import StreamLearner
from anytimecl.tail import TailInput
from anytimecl_lab import examples, run
from anytimecl_lab.examples import Streamed, bytes_of, chunks, resident, streamed, take, whole_size
from anytimecl_lab.methods import METHODS, Method
from anytimecl_lab.methods.encoder import JoinedEncoder
from anytimecl_lab.recipe import read_recipe
from anytimecl_lab.results import read_lines
from anytimecl_lab.run import main
from anytimecl_lab.studio import Shelf, Studio
from anytimecl_lab.world import Second, World

EACH = 12
SPEC = tiny_tail.spec()


@pytest.fixture(autouse=True)
def tight(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A window of three steps of eight examples; methods are run as the lab runs them."""
    monkeypatch.setattr(examples, "WINDOW", 25 * whole_size(1, SPEC))
    with torch.no_grad():
        yield


def arrays() -> list[np.ndarray[Any, np.dtype[np.float16]]]:
    """Tokens of two splits, with images among them that are no examples."""
    tokens = tokens_of([n for n in range(len(CLASSES)) for _ in range(EACH)], seed=1)
    some = tokens.half().numpy()
    spare = np.zeros_like(some[:3])
    return [np.concatenate([spare, some[:20]]), np.concatenate([some[20:], spare])]


def both() -> tuple[World, World]:
    """The same examples, resident and left where they are."""
    one, two = arrays()
    chosen = range(3, 23), range(len(two) - 3)
    plain = resident([one[3:], two[:-3]], SPEC, "cpu")
    given = replace(world(EACH), examples=plain)
    left = streamed([(one, chosen[0]), (two, chosen[1])], SPEC, "cpu")
    return given, replace(given, examples=left)


def test_what_is_brought_is_what_would_have_stayed() -> None:
    plain, left = both()
    assert isinstance(left.examples, Streamed)
    assert len(left.examples) == len(plain.labels)
    order = [47, 0, 19, 20, 20, 3]
    for one, two in zip(flat(plain.take(order)), flat(left.take(order)), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(chunks(plain.examples, 7), chunks(left.examples, 7), strict=True):
        assert all(map(torch.equal, flat(one), flat(two)))
    assert torch.equal(plain.original_vectors, left.original_vectors)


def flat(batch: Any) -> list[torch.Tensor]:
    assert isinstance(batch, TailInput)
    return [batch.cls, batch.tokens.parts]


MADE: dict[str, Callable[[World], Method]] = {
    "online": lambda given: METHODS["online"](given, batch=8),
    "paper": lambda given: METHODS["online"](given, batch=8, paper=True),
    "parts": lambda given: METHODS["partitions"](given, capacity=20, paper=True),
    "offline": lambda given: METHODS["offline"](given, epochs=2, batch=16),
    "offline-paper": lambda given: METHODS["offline-paper"](given, epochs=2, batch=16),
    "icarl": lambda given: METHODS["icarl"](given, epochs=2, batch=16),
    "zscl": lambda given: METHODS["zscl"](given, epochs=2, batch=16),
    "joint": lambda given: METHODS["joint"](given, epochs=2, batch=16),
}


@pytest.mark.parametrize("name", MADE)
def test_methods_learn_the_same_from_examples_that_are_brought(name: str) -> None:
    order = np.random.default_rng(3).permutation(4 * EACH).tolist()
    told = []
    for given in both():
        method = MADE[name](given)
        method.learn(order[:30])  # the window is filled ten times and more
        method.learn(order[30:])
        told.append(method.predict(asked()[0], CLASSES))
    assert torch.equal(*told)


def test_weights_are_the_same_to_the_last_bit() -> None:
    streams = []
    for given in both():
        method = METHODS["online"](given, batch=8)
        method.learn(list(range(40)))
        stream = method.stream  # type: ignore[attr-defined]
        assert isinstance(stream, StreamLearner)
        streams.append(stream)
    states = [stream.learner.state() for stream in streams]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert streams[0].estimates.state() == streams[1].estimates.state()


def test_a_second_encoder_is_brought_too() -> None:
    told = []
    for given in both():
        second = Second(
            "other", tiny_tail.spec(weights="other"), tiny_tail.params(3), given.examples
        )
        method = JoinedEncoder(replace(given, second=second))
        method.learn(list(range(0, 48, 2)))
        tokens, _ = asked()
        images = given.image_vectors(given.tail, tokens)
        told.append(method.both(images, tokens, CLASSES)["ocw"])
    assert torch.equal(*told)


def test_no_more_is_on_the_device_than_there_is_room_for(
    data: Path, model: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(write_recipe(tmp_path, model, "mtil", 'novel = ["novel"]'))
    free = Studio(recipe, data)
    sizes = {name: bytes_of(free.asked(name)) for name in free.sets}
    room = bytes_of(free.examples) + sizes["pets"]
    tight = Studio(recipe, data, room=room)
    assert not isinstance(tight.examples, Streamed)
    kept = {name: isinstance(tight.asked(name), Streamed) for name in tight.sets}
    assert set(kept.values()) == {True, False}
    assert tight.shelf.bytes <= room < free.shelf.bytes
    for name in free.sets:
        found = [take(studio.asked(name), [2, 0], "cpu") for studio in (free, tight)]
        assert all(map(torch.equal, *map(flat, found)))


@pytest.mark.parametrize("codec", ["", "tokens-fp16"])
def test_a_whole_run_without_any_room_gives_the_same_lines(
    codec: str, data: Path, model: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, model, "task-incremental", 'novel = ["novel"]')
    if codec:
        text = recipe.read_text()
        recipe.write_text(text.replace('"online"', f'"online"\ncodec = "{codec}"'))
    results = []
    for room in ("1", "0"):
        out = tmp_path / f"{room}.jsonl"
        words = [str(recipe), "--data", str(data), "--out", str(out), "--seeds=0"]
        assert main([*words, "--device-memory", room]) == 0
        results.append([(line["name"], line["results"]) for line in read_lines(out)])
    assert results[0] == results[1]


@pytest.mark.e2e
def test_processes_share_what_one_of_them_loaded(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where each process would hold all of it otherwise."""
    file = write_recipe(tmp_path, model, "data-incremental")
    studio = Studio(read_recipe(file), data)
    whole = studio.to_share(float("inf"))
    assert {kind for kind, _ in whole} == {"examples", "test pets ", "test places "}
    assert studio.to_share(0) == {}
    other = Studio(studio.recipe, data, shelf=Shelf(whole))
    assert other.examples is whole["examples", other._key(*other.train.values())]
    assert other.to_share(float("inf")) == {}

    def lines(name: str) -> list[Any]:
        out = tmp_path / f"{name}.jsonl"
        assert main([str(file), "--data", str(data), "--out", str(out), "--jobs=2"]) == 0
        return sorted(
            str([line["name"], line["seed"], line["results"]]) for line in read_lines(out)
        )

    plain = lines("plain")
    monkeypatch.setattr(run, "shared_by", lambda *_: whole)
    assert lines("shared") == plain
