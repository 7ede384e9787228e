"""What a tree has acknowledged it keeps, or says what is missing: owners, splits, disks, keys."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests import helpers

from anytimecl.codec._record import pack
from anytimecl.errors import CheckpointError, KeyUsedError, StoreError
from anytimecl.memory import StoreWarning, open_memory
from anytimecl.memory.database import FILE as MEMORY
from anytimecl.recording import RecordError
from anytimecl.scale import counts
from anytimecl.scale import tree as trees
from anytimecl.scale.leaf import image_vectors
from anytimecl.scale.leaves import Here, Unreachable, leaf_folder
from anytimecl.scale.tree import TreeClassifier
from anytimecl.trainer import Learned

COUNT = 12
FIRST = [f"lesson {number}" for number in range(COUNT)]


def opened(folder: Path, **options: Any) -> TreeClassifier:
    options = {"model": helpers.model(), "settings": helpers.settings(), **options}
    return TreeClassifier.open(folder, **options)


def teach(tree: TreeClassifier, numbers: range) -> None:
    for number in numbers:
        tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
    tree.settle()


def keys(tree: TreeClassifier) -> list[str]:
    """Of every stored example, in every leaf."""
    found = []
    for leaf in tree.routes.leaves():
        found += tree.leaves.call(leaf, "keys_after", 0)[0]
    return sorted(found)


def grown(folder: Path, count: int = COUNT, **options: Any) -> None:
    """A tree in a folder, closed."""
    with opened(folder, **options) as tree:
        teach(tree, range(count))


def abandon(tree: TreeClassifier) -> None:
    """What the end of the process would do, and no more."""
    assert isinstance(tree.leaves, Here)
    tree._splitter.shutdown()
    for leaf in tree.leaves._open.values():
        leaf._checkpointer.close()
        leaf.memory.close()
    tree._keys.close()
    tree._place.close()


def stored(folder: Path) -> int:
    """Examples in a leaf's folder."""
    with open_memory(folder, read_only=True) as memory:
        return len(memory)


# ---------------------------------------------------------------------------------- two owners


class Held(Here):
    """Leaves that stop at one step of a split, until the test says so."""

    step = ""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.there, self.go_on = threading.Event(), threading.Event()

    def _stop(self, step: str) -> None:
        if step == self.step:
            self.there.set()
            assert self.go_on.wait(60)

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        found = super().call(leaf, method, *args)
        self._stop(f"after {method}")
        return found

    def start(self, leaves: Any, **options: Any) -> None:
        leaves = list(leaves)
        if leaves != [0]:
            self._stop("before start")
        super().start(leaves, **options)

    def retire(self, leaf: int, **options: Any) -> None:
        self._stop("before retire")
        super().retire(leaf, **options)


@pytest.mark.parametrize("step", ["after divide", "before start", "before retire"])
def test_a_refused_second_opener_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tree = opened(tmp_path, capacity=COUNT - 1, leaves=Held)
    leaves = tree.leaves
    assert isinstance(leaves, Held)
    monkeypatch.setattr(Held, "step", step)
    teacher = threading.Thread(target=teach, args=(tree, range(COUNT)))
    teacher.start()
    assert leaves.there.wait(60)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        opened(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    leaves.go_on.set()
    teacher.join()
    assert len(tree) == COUNT
    tree.close()
    with opened(tmp_path) as tree:
        assert (tree.routes.leaves(), keys(tree)) == ([1, 2], sorted(FIRST))


def test_a_tree_that_cannot_be_locked_says_so(tmp_path: Path) -> None:
    (tmp_path / "tree.lock").mkdir()
    with pytest.raises(StoreError, match=r"The tree in .*: .*tree\.lock: Is a directory\."):
        opened(tmp_path)


def test_an_owner_that_lost_its_lock_writes_and_deletes_nothing(tmp_path: Path) -> None:
    stale = opened(tmp_path)
    teach(stale, range(COUNT))
    (tmp_path / "tree.lock").unlink()  # as a network disk may lose it
    with pytest.raises(StoreError, match="in use"):  # the leaf has a lock of its own
        opened(tmp_path)
    stale.learn_one(*helpers.lesson(COUNT), key=f"lesson {COUNT}")  # and nothing was taken over
    assert isinstance(stale.leaves, Here)
    stale.leaves._open[0].memory._release()  # now the leaf's lock is lost as well
    with opened(tmp_path) as tree:
        tree._split(0)
        before = sorted(tmp_path.rglob("leaf-*"))
        for _ in range(2):
            with pytest.raises(StoreError, match=r"another owner .number 2; this one is number 1"):
                stale._split(0)
        with pytest.raises(StoreError, match="another owner"):
            stale.forget(label="cat")
        assert sorted(tmp_path.rglob("leaf-*")) == before
        assert len(tree) == COUNT + 1
    abandon(stale)
    with opened(tmp_path) as tree:
        assert len(tree) == COUNT + 1


def test_an_owner_that_wakes_when_its_leaf_has_split_acknowledges_nothing(tmp_path: Path) -> None:
    stale = opened(tmp_path)
    teach(stale, range(COUNT))
    for lock in (tmp_path / "tree.lock", leaf_folder(tmp_path, 0) / "memory.lock"):
        lock.unlink()  # it was stopped for so long that its disk's network let them go
    with opened(tmp_path) as tree:
        tree._split(0)
        with pytest.raises(StoreError, match="was removed while it was in use"):
            stale.learn_one(*helpers.lesson(COUNT), key=f"lesson {COUNT}")
        assert len(tree) == COUNT
    abandon(stale)


def test_each_owner_has_a_higher_number(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        with opened(tmp_path) as tree:
            numbers.append(tree._place.owner)
    assert numbers == [1, 2, 3]


# ------------------------------------------------------------------------- what is not there


def test_a_missing_leaf_is_named_with_its_examples(tmp_path: Path) -> None:
    grown(tmp_path, 20, capacity=8)
    with opened(tmp_path) as tree:
        sizes = dict(tree._sizes)
    assert len(sizes) > 2
    lost, other = list(sizes)[:2]
    shutil.rmtree(leaf_folder(tmp_path, lost))
    for _ in range(2):  # nothing is made in its place
        with pytest.raises(StoreError, match=rf"leaf {lost}, at least {sizes[lost]} examples"):
            opened(tmp_path)
        assert not leaf_folder(tmp_path, lost).exists()
    with pytest.warns(StoreWarning, match=rf"leaf {lost}, at least {sizes[lost]} examples"):
        tree = opened(tmp_path, accept_loss=True)
    assert len(tree) == 20 - sizes[lost]
    teach(tree, range(20))  # those that are gone can be taught again
    assert keys(tree) == sorted(f"lesson {number}" for number in range(20))
    tree.close()
    with opened(tmp_path) as tree:
        assert len(tree) == 20
    shutil.move(leaf_folder(tmp_path, other), tmp_path / "elsewhere")  # a disk that comes back
    with pytest.raises(StoreError, match=f"leaf {other}"):
        opened(tmp_path)
    shutil.move(tmp_path / "elsewhere", leaf_folder(tmp_path, other))
    with opened(tmp_path) as tree:
        assert len(tree) == 20


def test_a_leaf_that_goes_missing_at_work_is_not_made_anew(tmp_path: Path) -> None:
    made = lambda *given: Here(*given, awake=1)  # noqa: E731
    with opened(tmp_path, capacity=8, leaves=made) as tree:
        teach(tree, range(COUNT))
        asleep = next(n for n in tree.routes.leaves() if n not in tree.leaves._open)  # type: ignore[attr-defined]
        os.rename(leaf_folder(tmp_path, asleep), tmp_path / "elsewhere")
        with pytest.raises(StoreError, match=f"{leaf_folder(tmp_path, asleep)} is missing"):
            tree.leaves.call(asleep, "__len__")
        os.rename(tmp_path / "elsewhere", leaf_folder(tmp_path, asleep))


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("harm", [empty, Path.unlink])
def test_a_leaf_without_its_memory_is_missing(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    grown(tmp_path)
    for name in (MEMORY, f"{MEMORY}-wal", "memory.mark"):
        if (leaf_folder(tmp_path, 0) / name).exists():
            harm(leaf_folder(tmp_path, 0) / name)
    with pytest.raises(StoreError, match=rf"leaf 0, at least {COUNT} examples"):
        opened(tmp_path)
    with (
        pytest.warns(StoreWarning, match=rf"lost: .*at least {COUNT} examples"),
        pytest.warns(StoreWarning, match="what is left of a leaf that is lost"),
    ):
        tree = opened(tmp_path, accept_loss=True)
    assert len(tree) == 0
    teach(tree, range(COUNT))
    assert keys(tree) == sorted(FIRST)
    tree.close()
    assert (tmp_path / "set-aside" / "leaf-000000").is_dir()  # what was left of it
    with opened(tmp_path) as tree:
        assert len(tree) == COUNT


def test_an_older_copy_of_a_leaf_is_refused(tmp_path: Path) -> None:
    grown(tmp_path / "tree", 6)
    shutil.copytree(leaf_folder(tmp_path / "tree", 0), tmp_path / "backup")
    grown(tmp_path / "tree", COUNT)
    shutil.rmtree(leaf_folder(tmp_path / "tree", 0))
    shutil.copytree(tmp_path / "backup", leaf_folder(tmp_path / "tree", 0))
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"leaf 0. holds 6 examples, and held {COUNT}"):
            opened(tmp_path / "tree")
    with pytest.warns(StoreWarning, match="holds 6 examples"):
        tree = opened(tmp_path / "tree", accept_loss=True)
    teach(tree, range(COUNT))
    assert keys(tree) == sorted(FIRST)
    tree.close()


def test_counts_reach_the_disk_while_it_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "EVERY", 5)
    tree = opened(tmp_path)
    teach(tree, range(COUNT))
    teach(tree, range(COUNT))  # keys that are known count once, and so do images
    for number in range(COUNT):
        tree.learn_one(*helpers.lesson(number))
    abandon(tree)
    shutil.rmtree(leaf_folder(tmp_path, 0))
    with pytest.raises(StoreError, match="at least 10 examples"):
        opened(tmp_path)


def test_forgetting_is_no_loss_wherever_it_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path)
    tree = opened(tmp_path)
    monkeypatch.setattr(tree, "_read_keys", lambda leaf: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tree.forget(label="cat")
    abandon(tree)
    with opened(tmp_path) as tree:
        assert "cat" not in tree.labels
        assert 0 < len(tree) < COUNT
        left = len(tree)
    assert tree._place.counts() == {0: left}


class ToldTwice(Here):
    """A leaf that dies when it has forgotten, before it says so, is told again."""

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        if method == "forget_label":
            super().call(leaf, method, *args)
        return super().call(leaf, method, *args)


def test_a_leaf_that_dies_when_it_has_forgotten_is_not_taken_for_a_loss(tmp_path: Path) -> None:
    grown(tmp_path, capacity=8)
    cats = sum(helpers.lesson(number)[1] == "cat" for number in range(COUNT))
    with opened(tmp_path, leaves=ToldTwice) as tree:
        assert tree.forget(label="cat") == cats > 0
    with opened(tmp_path) as tree:
        assert len(tree) == COUNT - cats


def test_keys_are_known_when_forgetting_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path, capacity=8)
    with opened(tmp_path) as tree:
        one, other = pictures_of_two_leaves(tree)
        tree.learn_one(helpers.picture(one), "dog", key="twice")
        last = max(tree.routes.leaves())
        whole = Here.call

        def failing(self: Here, leaf: int, method: str, *args: Any) -> Any:
            if method == "forget_label" and leaf == last:
                raise Unreachable("The leaf is not there.")
            return whole(self, leaf, method, *args)

        with monkeypatch.context() as patched:
            patched.setattr(Here, "call", failing)
            with pytest.raises(Unreachable):
                tree.forget(label="cat")
        refused(tree, other, "dog")
    with opened(tmp_path) as tree:
        assert tree.forget(label="cat") >= 0
        assert "cat" not in tree.labels


def test_a_late_retry_does_not_undo_a_newer_label_whatever_has_split(tmp_path: Path) -> None:
    grown(tmp_path, capacity=8)
    with opened(tmp_path) as tree:
        tree.learn_one(helpers.picture(99), "cat", key="older")
        tree.learn_one(helpers.picture(99), "dog", key="newer")
        before = tree.stats()["dog"].examples
        for _ in range(2):
            tree.learn_one(helpers.picture(99), "cat", key="older")
            assert tree.stats()["dog"].examples == before
            for leaf in tree.routes.leaves():
                tree._limit[leaf] = 1
                tree._split_if_full(leaf)
            tree.settle()


def test_a_record_that_holds_no_numbers_spoils_no_leaf(tmp_path: Path) -> None:
    settings = helpers.settings(codec="tokens-fp32")
    with opened(tmp_path, settings=settings) as tree:
        teach(tree, range(2))
        tokens = tree.encode([helpers.picture(9)])[0]
        payload = struct.pack("<h", 0) + torch.full_like(tokens, torch.nan).numpy().tobytes()
        with pytest.raises(RecordError, match="not finite"):
            tree.learn_record(pack("tokens-fp32", *tokens.shape, payload), "cat", key="nan")
        assert len(tree) == 2
        assert tree.predict(helpers.picture(0), ["cat", "dog"]).probabilities["cat"] >= 0


def test_leaves_without_routes_are_not_hidden_by_a_new_tree(tmp_path: Path) -> None:
    grown(tmp_path, capacity=8)
    (tmp_path / trees.FILE).unlink()
    with pytest.raises(StoreError, match="missing, and there are leaves: leaf-000001"):
        opened(tmp_path)


def test_a_tree_whose_making_was_cut_short_is_made(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / trees.FILE).unlink()
    with opened(tmp_path) as tree:
        teach(tree, range(2))
        assert len(tree) == 2


def test_folders_that_the_tree_does_not_know_are_put_aside(tmp_path: Path) -> None:
    grown(tmp_path)
    for _ in range(2):
        shutil.copytree(leaf_folder(tmp_path, 0), leaf_folder(tmp_path, 7))
        with pytest.warns(
            StoreWarning, match=r"leaf-000007 was put aside as .*set-aside.*does not know"
        ):
            tree = opened(tmp_path)
        assert len(tree) == COUNT
        tree.close()
    aside = tmp_path / "set-aside"
    assert sorted(place.name for place in aside.iterdir()) == ["leaf-000007", "leaf-000007.2"]
    assert stored(aside / "leaf-000007") == stored(aside / "leaf-000007.2") == COUNT
    with opened(tmp_path) as tree, pytest.warns(StoreWarning, match="delete them too"):
        tree.forget(label="cat")


def test_what_a_split_cannot_read_stays_in_the_old_memory(tmp_path: Path) -> None:
    grown(tmp_path)
    with sqlite3.connect(leaf_folder(tmp_path, 0) / MEMORY) as db:
        db.execute("UPDATE example SET crc = crc + 1 WHERE id = 3")
    db.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        with opened(tmp_path) as tree:
            tree._split(0)
            assert len(tree) == COUNT - 1
    assert stored(tmp_path / "set-aside" / "leaf-000000") == COUNT


def older(folder: Path) -> None:
    """What the first version of trees has left of a tree: no owner, no counts, no index."""
    for name in ("tree.lock", "counts.json", "keys.sqlite3"):
        (folder / name).unlink()
    with safe_open(folder / trees.FILE, framework="pt") as file:
        told, centres = file.metadata(), file.get_tensor("centres").clone()
    del told["owner"]
    save_file({"centres": centres}, folder / trees.FILE, metadata={**told, "version": "1"})


def test_a_tree_of_the_first_version_opens_and_goes_on(tmp_path: Path) -> None:
    grown(tmp_path, 20, capacity=8)
    older(tmp_path)
    shutil.copytree(tmp_path, tmp_path.with_name("damaged"))
    with opened(tmp_path, capacity=8) as tree:
        assert len(tree) == 20
        teach(tree, range(30))
        assert keys(tree) == sorted(f"lesson {number}" for number in range(30))
    with opened(tmp_path) as tree:
        assert (len(tree), tree._place.owner) == (30, 2)
    shutil.rmtree(leaf_folder(tmp_path.with_name("damaged"), tree.routes.leaves()[0]))
    with pytest.raises(StoreError, match="an unknown number of examples"):
        opened(tmp_path.with_name("damaged"))


def test_a_tree_of_a_later_version_is_refused(tmp_path: Path) -> None:
    grown(tmp_path, 2)
    with safe_open(tmp_path / trees.FILE, framework="pt") as file:
        told, centres = file.metadata(), file.get_tensor("centres").clone()
    save_file({"centres": centres}, tmp_path / trees.FILE, metadata={**told, "version": "3"})
    with pytest.raises(StoreError, match="version 3"):
        opened(tmp_path)


# ------------------------------------------------------------------ splits that are cut short


class NoRoom(Here):
    """Leaves beside the first cannot be started until there is room."""

    room = False
    tried = 0

    def start(self, leaves: Any, **options: Any) -> None:
        leaves = list(leaves)
        if leaves != [0] and not self.room:
            type(self).tried += 1
            raise Unreachable("no node has room")
        super().start(leaves, **options)


def test_a_split_without_room_leaves_the_leaf_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoRoom, "tried", 0)
    tree = opened(tmp_path, capacity=8, leaves=NoRoom)
    with pytest.warns(StoreWarning, match="could not be split.*no node has room.*again in 30 s"):
        teach(tree, range(9))
    teach(tree, range(9, COUNT))  # goes on, and does not try each time
    assert NoRoom.tried == 1
    assert (tree.routes.leaves(), len(tree)) == ([0], COUNT)
    assert [place.name for place in tmp_path.glob("*leaf-*")] == ["leaf-000000"]
    assert trees.Routes.load(tmp_path / trees.FILE)[0].leaves() == [0]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    with pytest.warns(StoreWarning, match="again in 60 s"):
        teach(tree, range(COUNT, COUNT + 1))
    monkeypatch.setattr(NoRoom, "room", True)
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    teach(tree, range(COUNT + 1, 20))
    assert len(tree.routes.leaves()) > 1
    assert keys(tree) == sorted(f"lesson {number}" for number in range(20))
    tree.close()


def test_a_crash_after_a_split_without_room_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = opened(tmp_path, capacity=8, leaves=NoRoom)
    with pytest.warns(StoreWarning, match="no node has room"):
        teach(tree, range(9))
    teach(tree, range(9, COUNT))
    abandon(tree)
    with opened(tmp_path) as tree:
        assert keys(tree) == sorted(FIRST)


class Faults:
    """Does something at file operation number so-and-so under a folder."""

    def __init__(self) -> None:
        self.folder, self.at, self.count = "", -1, 0
        self.fault: Callable[[], None] = lambda: None
        sys.addaudithook(self._hook)  # for ever: there is no way to take one back

    def _hook(self, event: str, given: tuple[Any, ...]) -> None:
        if self.folder and any(self.folder in str(one) for one in given[:2]):
            self.count += 1
            if self.count - 1 == self.at:
                self.fault()

    def arm(self, folder: Path, at: int, fault: Callable[[], None]) -> None:
        self.count, self.at, self.fault, self.folder = 0, at, fault, str(folder)


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    made = Faults()
    yield made
    made.folder = ""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree whose leaf is about to split."""
    folder = tmp_path_factory.mktemp("ready") / "tree"
    grown(folder)
    return folder


def steps(ready: Path, faults: Faults, folder: Path) -> int:
    """File operations of a split."""
    shutil.copytree(ready, folder)
    with opened(folder) as tree:
        faults.arm(folder, -1, lambda: None)
        tree._split(0)
        faults.folder = ""
    shutil.rmtree(folder)
    return faults.count


def check_whole(folder: Path, expected: list[str]) -> list[int]:
    """Whatever was cut short: every example is there once, and the tree goes on and splits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)  # of what is put aside
        with opened(folder, capacity=COUNT - 1) as tree:
            assert keys(tree) == sorted(expected)
            leaves = tree.routes.leaves()
            tree.learn_one(*helpers.lesson(50), key="lesson 50")
            tree.settle()
            assert keys(tree) == sorted([*expected, "lesson 50"])
            assert len(tree.routes.leaves()) == 2
    return leaves


def killed_at(folder: Path, faults: Faults, at: int) -> None:
    """A process that splits the tree dies at this step, with nothing tidied up."""
    child = os.fork()
    if not child:
        try:
            tree = opened(folder)
            faults.arm(folder, at, lambda: os._exit(9))
            tree._split(0)
            os._exit(9)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def kill_at(numbers: Callable[[int], range], ready: Path, faults: Faults, folder: Path) -> None:
    seen = set()
    for at in numbers(steps(ready, faults, folder)):
        shutil.copytree(ready, folder)
        killed_at(folder, faults, at)
        seen.add(tuple(check_whole(folder, FIRST)))
        shutil.rmtree(folder)
    assert seen == {(0,), (1, 2)}  # before and after the routes were written


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="a crash is the end of a fork")


@forks
def test_a_crash_in_a_split_loses_nothing(tmp_path: Path, ready: Path, faults: Faults) -> None:
    kill_at(lambda count: range(0, count, 9), ready, faults, tmp_path / "tree")


@forks
@pytest.mark.slow
def test_a_crash_at_any_step_of_a_split_loses_nothing(
    tmp_path: Path, ready: Path, faults: Faults
) -> None:
    kill_at(range, ready, faults, tmp_path / "tree")


def fail_at(numbers: Callable[[int], range], ready: Path, faults: Faults, folder: Path) -> None:
    """A disk that fails once, at this step; the same process goes on."""

    def fail() -> None:
        raise OSError(5, "the disk fails")

    failed = 0
    for at in numbers(steps(ready, faults, folder)):
        shutil.copytree(ready, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            with opened(folder, capacity=COUNT) as tree:
                faults.arm(folder, at, fail)
                tree.learn_one(*helpers.lesson(40), key="lesson 40")
                tree.settle()
                faults.folder = ""
                failed += len(tree.routes.leaves()) == 1
                more = [] if goes_on(tree) is None else ["lesson 41"]
        check_whole(folder, [*FIRST, "lesson 40", *more])
        shutil.rmtree(folder)
    assert failed


def goes_on(tree: TreeClassifier) -> Learned | None:
    """Teach another one; None where nobody knows what is on the disk, so that it is refused."""
    if tree._stopped is not None:
        with pytest.raises(StoreError, match="learns no more"):
            tree.learn_one(*helpers.lesson(41), key="lesson 41")
        return None
    return tree.learn_one(*helpers.lesson(41), key="lesson 41")


def test_a_disk_that_fails_in_a_split_loses_nothing(
    tmp_path: Path, ready: Path, faults: Faults
) -> None:
    fail_at(lambda count: range(4, count, 9), ready, faults, tmp_path / "tree")


@pytest.mark.slow
def test_a_disk_that_fails_at_any_step_of_a_split_loses_nothing(
    tmp_path: Path, ready: Path, faults: Faults
) -> None:
    fail_at(range, ready, faults, tmp_path / "tree")


@pytest.mark.parametrize(
    ("step", "routed"),
    [
        ("after divide", False),
        ("before start", False),
        ("after extent", False),
        ("after keys_after", True),
        ("before retire", True),
    ],
)
def test_a_split_holds_up_no_other_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, routed: bool
) -> None:
    grown(tmp_path, 20, capacity=15)
    tree = opened(tmp_path, leaves=Held)
    leaves = tree.leaves
    assert isinstance(leaves, Held)
    assert len(tree.routes.leaves()) == 2
    full, other = sorted(tree._sizes, key=lambda leaf: -tree._sizes[leaf])
    lessons: dict[int, list[int]] = {full: [], other: []}
    for number in range(20, 60):
        tokens = tree.encode([helpers.picture(number)])
        vector = image_vectors(tree.backbone, tokens)[0]
        lessons[tree.routes.leaf_of(vector)].append(number)
    monkeypatch.setattr(Held, "step", step)
    tree._limit[full] = tree._sizes[full]
    tree.learn_one(*helpers.lesson(lessons[full][0]), key="the last straw")
    assert leaves.there.wait(60)  # and it is not done until the test says so
    for number in lessons[other]:
        tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
    assert not tree.predict(helpers.picture(lessons[full][0]), helpers.LABELS).degraded
    assert full in tree._splitting  # it has not given up waiting for the test
    waiting = threading.Thread(
        target=tree.learn_one, args=helpers.lesson(lessons[full][1]), kwargs={"key": "waits"}
    )
    waiting.start()
    waiting.join(60 if routed else 0.2)
    assert waiting.is_alive() != routed  # while its leaf is being copied
    leaves.go_on.set()
    waiting.join(60)
    assert len(tree) == 20 + len(lessons[other]) + 2
    assert full not in tree.routes.leaves()
    tree.close()


class Unsaved(Here):
    """Leaves of which one finds no room for its checkpoint when it closes."""

    def close(self) -> None:
        leaf = self._use(max(self._leaves))
        whole = leaf.close

        def close() -> None:
            whole()
            raise CheckpointError("There is no room for the checkpoint.")

        leaf.close = close  # type: ignore[method-assign]
        super().close()


def test_a_leaf_that_cannot_save_its_checkpoint_keeps_no_other_open(tmp_path: Path) -> None:
    grown(tmp_path, capacity=8)
    tree = opened(tmp_path, leaves=Unsaved)
    with pytest.raises(CheckpointError, match="no room"):
        tree.close()
    with opened(tmp_path) as tree:
        assert keys(tree) == sorted(FIRST)


# ---------------------------------------------------------------------------------------- keys


def pictures_of_two_leaves(tree: TreeClassifier) -> tuple[int, int]:
    """Numbers of pictures that were never taught, and belong to different leaves."""
    found: dict[int, int] = {}
    for number in range(1000, 1200):
        vector = image_vectors(tree.backbone, tree.encode([helpers.picture(number)]))[0]
        found.setdefault(tree.routes.leaf_of(vector), number)
    one, other = list(found.values())[:2]
    return one, other


def refused(tree: TreeClassifier, number: int, label: str) -> None:
    """The key has taught something else, wherever in the tree that is."""
    with pytest.raises(KeyUsedError, match="'twice'"):
        tree.learn_one(helpers.picture(number), label, key="twice")


def test_a_key_teaches_once_in_the_whole_tree(tmp_path: Path) -> None:
    grown(tmp_path, capacity=8)
    with opened(tmp_path) as tree:
        one, other = pictures_of_two_leaves(tree)
        learned = tree.learn_one(helpers.picture(one), "cat", key="twice")
        assert tree.learn_one(helpers.picture(one), "cat", key="twice").id == learned.id
        refused(tree, other, "cat")
        assert len(tree) == COUNT + 1
    with opened(tmp_path) as tree:  # nor after a restart
        refused(tree, other, "cat")
        for leaf in tree.routes.leaves():  # nor after splits
            tree._split(leaf)
        for number in range(1000, 1040):
            if number != one:
                refused(tree, number, "cat")
        refused(tree, one, "dog")
        tree.learn_one(helpers.picture(one), "cat", key="twice")
        assert len(tree) == COUNT + 1
        assert tree.forget(label="cat") >= 1  # the key goes when the example goes
        before = len(tree)
        tree.learn_one(helpers.picture(other), "dog", key="twice")
        refused(tree, one, "dog")
        assert len(tree) == before + 1


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"damaged" * 999)])
def test_the_index_of_keys_is_made_again(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    grown(tmp_path, capacity=8)
    with opened(tmp_path) as tree:
        one, other = pictures_of_two_leaves(tree)
        tree.learn_one(helpers.picture(one), "cat", key="twice")
    harm(tmp_path / "keys.sqlite3")
    with opened(tmp_path) as tree:
        refused(tree, other, "cat")
        assert len(tree) == COUNT + 1


def test_an_index_that_a_power_cut_left_behind_catches_up(tmp_path: Path) -> None:
    grown(tmp_path, capacity=8)
    shutil.copy(tmp_path / "keys.sqlite3", tmp_path / "older")
    with opened(tmp_path) as tree:
        one, other = pictures_of_two_leaves(tree)
        tree.learn_one(helpers.picture(one), "cat", key="twice")
    shutil.move(tmp_path / "older", tmp_path / "keys.sqlite3")
    with opened(tmp_path) as tree:
        refused(tree, other, "cat")
        assert len(tree) == COUNT + 1


class Unread(Here):
    """Leaves whose keys cannot be read after a split."""

    unread = False

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        if self.unread and method == "keys_after" and args[0] == 0:
            raise Unreachable("The leaf is not there.")
        return super().call(leaf, method, *args)


def test_keys_that_a_split_could_not_read_are_read_by_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, leaves=Unread) as tree:
        teach(tree, range(COUNT))
        monkeypatch.setattr(Unread, "unread", True)
        with pytest.warns(StoreWarning, match="has split; but"):
            tree._split(0)
    with pytest.warns(StoreWarning, match="put aside"):  # the leaf that has split
        tree = opened(tmp_path)
    for number in range(COUNT):
        assert tree._keys.leaf_of(f"lesson {number}") in tree.routes.leaves()
    tree.close()


def test_forgotten_keys_are_in_no_file(tmp_path: Path) -> None:
    grown(tmp_path, capacity=8)
    with opened(tmp_path) as tree:
        tree.learn_one(helpers.picture(99), "cat", key="holiday with grandmother.jpg")
        tree.forget(label="cat")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not [file for file in files if b"grandmother" in file.read_bytes()]


def test_one_key_from_many_threads_teaches_once(tmp_path: Path) -> None:
    def teach_or_be_refused(number: int) -> None:
        try:
            tree.learn_one(helpers.picture(number), "cat", key=f"{number % 3}")
        except KeyUsedError:
            told.append(number)

    grown(tmp_path, capacity=4)
    told: list[int] = []
    with opened(tmp_path, capacity=5) as tree:
        threads = [threading.Thread(target=teach_or_be_refused, args=(n,)) for n in range(200, 224)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert keys(tree) == sorted([*FIRST, "0", "1", "2"])
        assert len(told) == 24 - 3


def test_a_lesson_whose_key_cannot_be_written_down_is_not_taught(tmp_path: Path) -> None:
    def fill() -> None:
        for number in range(4, 4000):
            tree.learn_one(*helpers.lesson(4), key=f"a long key {number}" * 200)

    with opened(tmp_path) as tree:
        teach(tree, range(4))
        room = tree._keys._db.execute("PRAGMA max_page_count").fetchone()[0]
        tree._keys._db.execute("PRAGMA max_page_count = 1")  # as a full disk
        with pytest.raises(StoreError, match="disk is full"):
            fill()
        before = len(tree)
        tree._keys._db.execute(f"PRAGMA max_page_count = {room}")
        tree.learn_one(*helpers.lesson(4), key=f"a long key {before}" * 200)  # the one that failed
        assert len(tree) == before + 1
