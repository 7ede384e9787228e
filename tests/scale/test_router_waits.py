"""Who waits for a leaf that splits, or has too much to learn, takes no thread of the router."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests import helpers
from tests.backbone import tiny
from tests.scale.test_tree import keys

from anytimecl.errors import StoreError
from anytimecl.memory import StoreWarning
from anytimecl.scale import router, router_host
from anytimecl.scale.leaf import LeafLesson
from anytimecl.scale.leaves import Here
from anytimecl.scale.pending import PENDING
from anytimecl.scale.record_host import EncodedImage
from anytimecl.scale.router_host import RouterHost
from anytimecl.scale.tree import TreeClassifier
from anytimecl.scale.tree_folder import TreeFolder, TreeInUse
from anytimecl.trainer import Learned

WAITING = 12  # of which each would take one of the two threads


class Held(Here):
    """Leaves that divide, or learn some lessons, when the test says so."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.dividing, self.go_on = threading.Event(), threading.Event()
        self.slow: int | None = None
        self.late: list[tuple[LeafLesson, Future[Learned]]] = []

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        if method == "divide":
            self.dividing.set()
            assert self.go_on.wait(60)
        return super().call(leaf, method, *args)

    def teach(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        if leaf != self.slow:
            return super().teach(leaf, lesson)
        self.late.append((lesson, Future()))
        return self.late[-1][1]

    def learn_late(self) -> None:
        """All that was held back, and everything after it."""
        leaf, self.slow = self.slow, None
        assert leaf is not None
        for lesson, future in self.late:
            future.set_result(super().teach(leaf, lesson).result())


class Unmeasured:
    @contextmanager
    def timed(self, *_: Any) -> Iterator[None]:
        yield


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model for routers in this process, with two threads for lessons."""
    monkeypatch.setattr(router_host, "THREADS", {**router_host.THREADS, "learn": 2})
    monkeypatch.setattr(router_host, "on_ray", lambda **_: Held)
    monkeypatch.setattr(router_host, "import_ray", lambda: None)
    monkeypatch.setattr(router_host, "encoders_on", lambda *_: [])
    monkeypatch.setattr(router_host, "RouterMetrics", Unmeasured)
    return str(tiny.clip(tmp_path / "model"))


@pytest.fixture
def host(tmp_path: Path, model: str) -> Iterator[RouterHost]:
    """A router of two leaves."""
    made = RouterHost(str(tmp_path / "tree"), model, 8, 1, 1.0)
    leaves = made._tree.leaves
    assert isinstance(leaves, Held)
    leaves.go_on.set()
    for number in range(9):
        made._tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
    made._tree.settle()
    leaves.go_on.clear()
    leaves.dividing.clear()
    yield made
    made._tree.close()


def images(host: RouterHost) -> tuple[int, int, dict[int, list[EncodedImage]]]:
    """The fuller leaf, the other one, and images of each."""
    tree = host._tree
    full, other = sorted(tree._sizes, key=lambda leaf: -tree._sizes[leaf])
    found: dict[int, list[EncodedImage]] = {full: [], other: []}
    for number in range(20, 200):
        [image] = host._maker.encoded([helpers.picture(number)])
        found[tree.routes.leaf_of(torch.tensor(image.vector))].append(image)
    return full, other, found


async def learn(host: RouterHost, image: EncodedImage, key: str) -> list[Learned]:
    return await host.learn_all([(image, "cat", None, key)])


def test_lessons_for_a_leaf_that_splits_hold_up_no_other(host: RouterHost) -> None:
    tree, leaves = host._tree, host._tree.leaves
    assert isinstance(leaves, Held)
    full, other, of = images(host)
    tree._limit[full] = tree._sizes[full]

    async def check() -> None:
        await learn(host, of[full][0], "the last straw")
        assert await asyncio.to_thread(leaves.dividing.wait, 60)
        own = [asyncio.ensure_future(learn(host, of[full][n + 1], f"{n}")) for n in range(WAITING)]
        await asyncio.sleep(0.2)
        for n, image in enumerate(of[other][:5]):
            await asyncio.wait_for(learn(host, image, f"other {n}"), 20)
        assert not any(one.done() for one in own)
        leaves.go_on.set()
        await asyncio.wait_for(asyncio.gather(*own), 60)

    try:
        asyncio.run(check())
    finally:
        leaves.go_on.set()
    tree.settle()
    assert full not in tree.routes.leaves()
    assert len(keys(tree)) == len(set(keys(tree))) == 9 + 1 + WAITING + 5


def test_lessons_that_are_too_many_for_a_leaf_hold_up_no_other(host: RouterHost) -> None:
    tree, leaves = host._tree, host._tree.leaves
    assert isinstance(leaves, Held)
    tree._limit = dict.fromkeys(tree._limit)
    full, other, of = images(host)
    leaves.slow = full

    async def check() -> None:
        own = [
            asyncio.ensure_future(learn(host, of[full][n % len(of[full])], f"{n}"))
            for n in range(PENDING + WAITING)
        ]
        async with asyncio.timeout(60):
            while len(leaves.late) < PENDING:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert len(leaves.late) == PENDING
        for n, image in enumerate(of[other][:5]):
            await asyncio.wait_for(learn(host, image, f"other {n}"), 20)
        assert not any(one.done() for one in own)
        await asyncio.to_thread(leaves.learn_late)
        await asyncio.wait_for(asyncio.gather(*own), 60)

    asyncio.run(check())


@pytest.mark.parametrize("again", [True, False])
def test_a_router_that_is_started_again_waits_for_the_lock_of_the_one_before(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(router_host, "_started_again", lambda: again)
    monkeypatch.setattr(router_host, "PAUSE", 0.05)
    before = TreeFolder(tmp_path / "tree")
    if not again:
        with pytest.raises(TreeInUse):
            RouterHost(str(tmp_path / "tree"), model, 8, 1, 1.0)
        before.close()
        return
    release = threading.Timer(1.0, before.close)
    release.start()
    RouterHost(str(tmp_path / "tree"), model, 8, 1, 1.0)._tree.close()
    release.join()


@pytest.mark.parametrize("again", [True, False])
def test_a_loss_is_accepted_once_and_not_whenever_the_router_is_started_again(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr(router_host, "_started_again", lambda: again)
    folder = tmp_path / "tree"
    TreeClassifier.open(folder, model=model).close()
    (folder / "leaf-000000").rename(tmp_path / "away")
    start = partial(RouterHost, str(folder), model, 8, 1, 1.0, accept_loss=True)
    if again:
        with pytest.raises(StoreError, match=r"leaf 0.*is missing"):
            start()
        assert not (folder / "leaf-000000").exists()
        return
    with pytest.warns(StoreWarning, match=r"leaf 0.*is missing"):
        start()._tree.close()


def test_a_router_writes_the_second_copy_where_its_caller_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    def remote(*args: Any) -> None:
        raise Started(args)

    ray = SimpleNamespace(remote=lambda **_: lambda _: SimpleNamespace(remote=remote))
    monkeypatch.setattr(router, "import_ray", lambda: ray)
    monkeypatch.setattr(router, "connect_ray", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    for given, meant in (("copy", str(tmp_path / "copy")), ("none", "none"), (None, None)):
        with pytest.raises(Started) as told:
            router.up("tree", copy_to=given)
        assert told.value.args[0][-2] == meant
