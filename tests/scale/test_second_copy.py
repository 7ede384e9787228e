"""A second copy of every acknowledged lesson, snapshots of a whole tree, and checking all of it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from tests import helpers
from tests.scale.test_tree import grown, keys, leaf, opened
from typer.testing import CliRunner

from anytimecl import cli
from anytimecl.errors import KeyUsedError, StoreError
from anytimecl.memory import StoreWarning
from anytimecl.scale import copy_places, counts, second_copy, snapshots
from anytimecl.scale import leaf as leaves
from anytimecl.scale.leaf import LeafLesson
from anytimecl.scale.leaves import Here
from anytimecl.scale.second_copy import SecondCopy, lessons_in
from anytimecl.scale.snapshots import TreeReport, snapshot, verify_tree

COUNT = 14


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Another disk, or a store that is none."""
    if request.param == "folder":
        yield str(tmp_path / "elsewhere")
        return
    yield "memory://elsewhere/copy"
    fsspec.filesystem("memory").rm("/elsewhere", recursive=True)


def taught_keys(address: str) -> list[str | None]:
    return [lesson.key for lesson in lessons_in(address)]


def test_every_acknowledged_lesson_is_in_the_second_place(place: str, tmp_path: Path) -> None:
    tree = opened(tmp_path / "tree", capacity=6, copy_to=place)
    for number in range(COUNT):
        tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
        assert f"lesson {number}" in taught_keys(place)  # as soon as it is acknowledged
    tree.learn_one(*helpers.lesson(COUNT))  # without a key it gets one
    tree.close()
    assert len(set(taught_keys(place))) == COUNT + 1
    with opened(tmp_path / "tree") as tree:  # the tree knows that it has a copy
        tree.learn_one(*helpers.lesson(20), key="after")
        held = {row.key: row for n in tree.routes.leaves() for _, row in rows(tree, n)}
    for lesson in lessons_in(place):
        row = held[lesson.key]
        assert (lesson.record, lesson.label) == (row.record, row.label)
    assert "after" in held


def rows(tree: Any, number: int) -> Any:
    memory = leaf(tree, number).memory
    return memory.rows([example for example, _ in memory.ids()])


def test_a_lost_disk_is_learned_again_from_the_copy(place: str, tmp_path: Path) -> None:
    with grown(tmp_path / "tree", COUNT, capacity=6, copy_to=place) as tree:
        before = keys(tree)
    shutil.rmtree(tmp_path / "tree")
    with opened(tmp_path / "new", capacity=6) as tree:
        for lesson in lessons_in(place):
            tree.learn_lesson(lesson)
        for lesson in lessons_in(place):  # once more teaches nothing
            tree.learn_lesson(lesson)
        assert keys(tree) == before
        assert len(tree) == COUNT


def test_a_copy_that_comes_later_gets_what_is_there(place: str, tmp_path: Path) -> None:
    grown(tmp_path / "tree", COUNT, capacity=6).close()
    opened(tmp_path / "tree", copy_to=place).close()
    assert sorted(map(str, taught_keys(place))) == sorted(f"lesson {n}" for n in range(COUNT))
    with opened(tmp_path / "tree", copy_to="none") as tree:
        tree.learn_one(*helpers.lesson(30), key="alone")
    assert "alone" not in taught_keys(place)


def test_forgetting_reaches_the_copy(place: str, tmp_path: Path) -> None:
    with grown(tmp_path / "tree", COUNT, copy_to=place) as tree:
        gone = tree.forget(label="cat")
        assert gone
        left = [lesson.label for lesson in lessons_in(place)]
        assert "cat" not in left
        assert len(left) == COUNT - gone
        tree.learn_one(*helpers.lesson(30), key="after")
        assert "after" in taught_keys(place)


def test_an_image_forgotten_under_its_new_label_is_not_left_under_the_old(
    place: str, tmp_path: Path
) -> None:
    with opened(tmp_path / "tree", copy_to=place) as tree:
        tree.learn_one(helpers.picture(0), "cat", key="wrong")
        assert tree.learn_one(helpers.picture(0), "dog", key="right").replaced == "cat"
        tree.learn_one(helpers.picture(1), "cat", key="another")
        tree.forget(label="dog")
        assert taught_keys(place) == ["another"]


class ForgetsMeanwhile(Here):
    """Leaves whose tree forgets a label as soon as one has said that it knows a key."""

    forget: ClassVar[list[Callable[[], object]]] = []

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        found = super().call(leaf, method, *args)
        while method == "known" and self.forget:
            self.forget.pop()()
        return found


def test_a_retry_that_is_on_its_way_brings_nothing_forgotten_back_to_the_copy(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grown(
        tmp_path / "tree", COUNT, capacity=6, copy_to=place, leaves=ForgetsMeanwhile
    ) as tree:
        tree.learn_one(helpers.picture(50), "okapi", key="x")
        other = next(n for n in tree.routes.leaves() if n != tree._keys.leaf_of("x"))
        monkeypatch.setattr(type(tree.routes), "leaf_of", lambda *_: other)
        ForgetsMeanwhile.forget.append(lambda: tree.forget(label="okapi"))
        tree.learn_one(helpers.picture(50), "okapi", key="x")  # as new
        assert tree.stats()["okapi"].examples == 1
        assert taught_keys(place).count("x") == 1


def test_a_label_is_unknown_though_the_copy_has_not_forgotten_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grown(tmp_path / "tree", 4, copy_to=str(tmp_path / "copy")) as tree:
        with monkeypatch.context() as patched:
            patched.setattr(SecondCopy, "_check_there", failing)
            with pytest.raises(StoreError, match="has not forgotten 'cat'"):
                tree.forget(label="cat")
        assert "cat" not in tree.labels
        tree.forget(label="cat")


def failing(*_: object) -> None:
    raise StoreError("it is away")


def full(*_: object) -> int:
    raise OSError("No space left on device")


def test_what_cannot_be_copied_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "tree", copy_to=str(tmp_path / "copy")) as tree:
        with monkeypatch.context() as patched:
            patched.setattr(copy_places.FolderPlace, "append", full)
            with pytest.raises(
                StoreError, match=r"not in the second copy.*No space left.*same key"
            ):
                tree.learn_one(*helpers.lesson(0), key="a")
        tree.learn_one(*helpers.lesson(0), key="a")
        assert len(tree) == 1
        assert taught_keys(str(tmp_path / "copy")) == ["a"]


def test_what_is_refused_is_not_copied(place: str, tmp_path: Path) -> None:
    with opened(tmp_path / "tree", copy_to=place) as tree:
        tree.learn_one(*helpers.lesson(0), key="a")
        with pytest.raises(KeyUsedError):
            tree.learn_one(*helpers.lesson(1), key="a")
    assert taught_keys(place) == ["a"]


def test_a_line_cut_short_takes_no_other_along(tmp_path: Path) -> None:
    for owner in (1, 2):
        with SecondCopy(str(tmp_path), "tree", owner, {}, noted=0) as copy:
            for number in range(3):
                copy.put(LeafLesson(b"x" * number, "cat", key=f"{owner}{number}")).result()
            copy.declare_whole()
        [*_, last] = sorted(tmp_path.glob("lessons-*"))
        last.write_bytes(last.read_bytes()[:-5])
    assert taught_keys(str(tmp_path)) == ["10", "11", "20", "21"]


def test_a_damaged_line_is_told(tmp_path: Path) -> None:
    with SecondCopy(str(tmp_path), "tree", 1, {}, noted=0) as copy:
        for number in range(3):
            copy.put(LeafLesson(b"x" * number, "cat", key=f"{number}")).result()
        copy.declare_whole()
    [file] = tmp_path.glob("lessons-*")
    file.write_bytes(file.read_bytes().replace(b'"key": "1"', b'"key": "7"'))
    with pytest.warns(StoreWarning, match="1 lessons in .* damaged"):
        assert taught_keys(str(tmp_path)) == ["0", "2"]


def test_a_copy_that_is_closed_keeps_nobody_waiting(tmp_path: Path) -> None:
    copy = SecondCopy(str(tmp_path), "tree", 1, {}, noted=0)
    copy.close()
    with pytest.raises(StoreError, match="closed"):
        copy.put(LeafLesson(b"x", "cat", key="a")).result(10)


def test_examples_that_cannot_be_read_hide_no_others_from_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaves, "CHUNK", 4)
    with grown(tmp_path / "tree", COUNT) as tree:
        memory = leaf(tree, 0).memory
        with memory.writing() as db:  # the first chunk and more
            db.execute("UPDATE example SET crc = crc + 1 WHERE id <= 6")
    with pytest.warns(StoreWarning, match="Left out"):
        opened(tmp_path / "tree", copy_to=str(tmp_path / "copy")).close()
    assert len(taught_keys(str(tmp_path / "copy"))) == COUNT - 6


def test_a_late_retry_changes_nothing_in_the_copy(place: str, tmp_path: Path) -> None:
    with opened(tmp_path / "tree", copy_to=place) as tree:
        tree.learn_one(helpers.picture(0), "cat", key="older")
        tree.learn_one(helpers.picture(0), "dog", key="newer")
        tree.learn_one(helpers.picture(0), "cat", key="older")
    with opened(tmp_path / "new") as tree:
        for lesson in lessons_in(place):
            tree.learn_lesson(lesson)
        assert tree.stats()["dog"].examples == 1
    with opened(tmp_path / "tree") as tree:
        tree.forget(label="cat")
        assert [lesson.label for lesson in lessons_in(place)] == ["dog"]
        tree.forget(label="dog")
        assert not taught_keys(place)


def test_what_a_copy_lacks_is_found(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_copy, "PAUSE", 0.0)
    with opened(tmp_path / "tree", copy_to=place) as tree:
        for number in range(4):
            tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
        assert tree.verify().ok
    with opened(tmp_path / "tree") as tree:  # another file
        tree.learn_one(*helpers.lesson(4), key="lesson 4")
    assert verify_tree(tmp_path / "tree").ok
    held = copy_places.place_at(place)
    held.write(held.names()[-1], b"")
    for report in (verify_tree(tmp_path / "tree"), opened_and_verified(tmp_path / "tree")):
        assert not report.ok
        assert "An example is not in the second copy" in str(report)
        assert "'lesson 4'" in str(report)


def opened_and_verified(folder: Path) -> TreeReport:
    with opened(folder) as tree:
        return tree.verify()


def test_a_disk_that_fills_up_in_a_line_takes_no_later_one_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copy_places.FolderPlace.append

    def half(place: Any, name: str, lines: bytes) -> int:
        whole(place, name, lines[: len(lines) // 2])
        raise OSError("No space left on device")

    with opened(tmp_path / "tree", copy_to=str(tmp_path / "copy")) as tree:
        tree.learn_one(*helpers.lesson(0), key="a")
        with monkeypatch.context() as patched:
            patched.setattr(copy_places.FolderPlace, "append", half)
            with pytest.raises(StoreError, match="not in the second copy"):
                tree.learn_one(*helpers.lesson(1), key="b")
        tree.learn_one(*helpers.lesson(2), key="c")
    assert taught_keys(str(tmp_path / "copy")) == ["a", "c"]


def test_a_lesson_that_another_leaf_has_reaches_the_copy_when_sent_again(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grown(tmp_path / "tree", COUNT, capacity=6, copy_to=place) as tree:
        own = tree.submit_tokens(tree.encode([helpers.picture(50)])[0], "cat", key="x")
        own.result()
        tree._copy.forget("cat")  # type: ignore[union-attr]  # as if it had failed there
        assert "x" not in taught_keys(place)
        other = next(n for n in tree.routes.leaves() if n != tree._keys.leaf_of("x"))
        monkeypatch.setattr(type(tree.routes), "leaf_of", lambda *_: other)
        tree.learn_one(helpers.picture(50), "cat", key="x")
        assert "x" in taught_keys(place)


def test_a_place_that_was_emptied_gets_everything_again(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with grown(tmp_path / "tree", COUNT, copy_to=str(copy)) as tree:
        held = keys(tree)
    shutil.rmtree(copy)
    opened(tmp_path / "tree").close()
    assert sorted(map(str, taught_keys(str(copy)))) == held


def test_a_place_that_was_away_for_a_while_gets_what_it_missed(tmp_path: Path) -> None:
    copy, away = tmp_path / "copy", tmp_path / "away"
    with opened(tmp_path / "tree", copy_to=str(copy)) as tree:
        tree.learn_one(*helpers.lesson(0), key="before")
        tree.learn_one(helpers.picture(1), "okapi", key="forgotten meanwhile")
    copy.rename(away)  # its disk is not mounted
    with opened(tmp_path / "tree") as tree:
        tree.learn_one(*helpers.lesson(2), key="meanwhile")
        tree.forget(label="okapi")
    shutil.rmtree(copy)
    away.rename(copy)
    for _ in range(2):
        with opened(tmp_path / "tree") as tree:
            tree.learn_one(*helpers.lesson(3), key="after")
        assert sorted(set(taught_keys(str(copy)))) == ["after", "before", "meanwhile"]
    assert len(taught_keys(str(copy))) == 4  # the second time it lacked nothing: a retry alone


def test_nothing_is_acknowledged_by_a_place_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, away = tmp_path / "copy", tmp_path / "away"
    with opened(tmp_path / "tree", copy_to=str(copy)) as tree:
        tree.learn_one(helpers.picture(0), "cat", key="before")
        copy.rename(away)
        copy.mkdir()  # where its disk was mounted
        with pytest.raises(StoreError, match=r"not in the second copy.*is its disk mounted"):
            tree.learn_one(*helpers.lesson(1), key="meanwhile")
        with pytest.raises(StoreError, match="is its disk mounted") as told:
            tree.forget(label="cat")
        assert f"({copy}) has not forgotten 'cat'" in str(told.value)
        copy.rmdir()
        away.rename(copy)
        with monkeypatch.context() as patched:
            patched.setattr(copy_places.FolderPlace, "write", full)
            with pytest.raises(StoreError, match=r"has not forgotten 'cat'.*No space left"):
                tree.forget(label="cat")
        assert tree.forget(label="cat") == 0  # the leaves have done so
        assert taught_keys(str(copy)) == []
        tree.learn_one(*helpers.lesson(1), key="meanwhile")
        assert taught_keys(str(copy)) == ["meanwhile"]


def test_a_place_that_cannot_be_begun_with_takes_no_other_away(tmp_path: Path) -> None:
    copy, file = str(tmp_path / "copy"), tmp_path / "file"
    file.write_text("")
    opened(tmp_path / "tree", copy_to=copy).close()
    for wrong, told in ((str(file / "other"), "cannot be made"), ("~/copy", "home folder")):
        with pytest.raises(StoreError, match=told):
            opened(tmp_path / "tree", copy_to=wrong)
    with opened(tmp_path / "tree") as tree:
        tree.learn_one(*helpers.lesson(0), key="a")
    assert taught_keys(copy) == ["a"]


@pytest.mark.parametrize("how", ["{}", "file://{}"])
def test_a_folder_is_the_same_one_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    copy = tmp_path / "copy"
    monkeypatch.chdir(tmp_path)
    opened(tmp_path / "tree", copy_to="copy").close()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with opened(tmp_path / "tree") as tree:
        tree.learn_one(*helpers.lesson(0), key="a")
    with opened(tmp_path / "tree", copy_to=how.format(copy)) as tree:
        tree.learn_one(*helpers.lesson(1), key="b")
    assert sorted(map(str, taught_keys(str(copy)))) == ["a", "b"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_place_of_another_tree_is_left_alone(place: str, tmp_path: Path) -> None:
    grown(tmp_path / "one", 4, copy_to=place).close()
    before = list(lessons_in(place))
    with pytest.raises(StoreError, match=r"lessons of another tree.*choose another place"):
        opened(tmp_path / "two", copy_to=place)
    assert list(lessons_in(place)) == before


def test_a_snapshot_does_not_write_where_the_copy_of_its_tree_is(
    place: str, tmp_path: Path
) -> None:
    with opened(tmp_path / "tree", copy_to=place) as tree:
        tree.learn_one(*helpers.lesson(0), key="first")
        snapshot(tmp_path / "tree", tmp_path / "older")
        tree.learn_one(*helpers.lesson(1), key="second")
    shutil.rmtree(tmp_path / "tree")  # the disk is lost, and there is an older snapshot
    with opened(tmp_path / "older") as tree:
        tree.learn_one(*helpers.lesson(2), key="third")
        tree.learn_one(*helpers.lesson(3), key="fourth")
        assert taught_keys(place) == ["first", "second"]  # all that is left of the second
        for lesson in lessons_in(place):
            tree.learn_lesson(lesson)
        assert keys(tree) == ["first", "fourth", "second", "third"]
    with pytest.raises(StoreError, match="another tree"):
        opened(tmp_path / "older", copy_to=place)


def test_a_copy_whose_beginning_was_cut_short_has_nothing_twice(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "tree") as tree:
        for number in range(4):
            tree.learn_one(*helpers.lesson(number))  # no key: the copy gives it one
    with monkeypatch.context() as patched:

        def killed(copy: SecondCopy) -> None:
            raise KeyboardInterrupt

        patched.setattr(SecondCopy, "declare_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "tree", copy_to=place)
    with pytest.raises(StoreError, match="no copy"):
        list(lessons_in(place))
    opened(tmp_path / "tree", copy_to=place).close()
    opened(tmp_path / "tree", copy_to="none").close()
    with opened(tmp_path / "tree", copy_to=place) as tree:  # which was not told of all between
        assert len(list(lessons_in(place))) == len(tree) == 4


def test_who_reads_where_there_is_no_copy_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no copy of a tree's lessons"):
        list(lessons_in(str(tmp_path / "nothing")))
    assert not list(tmp_path.iterdir())


def test_corrections_are_not_undone_by_a_retry_that_a_later_copy_hears_of(
    place: str, tmp_path: Path
) -> None:
    with opened(tmp_path / "tree") as tree:
        tree.learn_one(helpers.picture(0), "cat", key="older")
        tree.learn_one(helpers.picture(0), "dog", key="newer")
    with opened(tmp_path / "tree", copy_to=place) as tree:
        tree.learn_one(helpers.picture(0), "cat", key="older")
    with opened(tmp_path / "new") as tree:
        for lesson in lessons_in(place):
            tree.learn_lesson(lesson)
        assert list(tree.stats()) == ["dog"]


@pytest.mark.parametrize("newer", ["cat", "dog"])
def test_a_retry_is_acknowledged_by_a_copy_that_has_its_image(tmp_path: Path, newer: str) -> None:
    copy, away = tmp_path / "copy", tmp_path / "away"
    with opened(tmp_path / "tree", copy_to=str(copy)) as tree:
        copy.rename(away)
        copy.mkdir()  # where its disk was mounted
        for key, label in (("older", "cat"), ("newer", newer)):
            with pytest.raises(StoreError, match="not in the second copy"):
                tree.learn_one(helpers.picture(0), label, key=key)
        copy.rmdir()
        away.rename(copy)
        for key, label in (("older", "cat"), ("newer", newer)):
            tree.learn_one(helpers.picture(0), label, key=key)
            assert {lesson.label for lesson in lessons_in(str(copy))} == {newer}
    with opened(tmp_path / "new") as tree:
        for lesson in lessons_in(str(copy)):
            tree.learn_lesson(lesson)
        assert [(label, known.examples) for label, known in tree.stats().items()] == [(newer, 1)]


def test_a_copy_of_the_first_version_goes_on(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with opened(tmp_path / "tree", copy_to=str(copy)) as tree:
        tree.learn_one(*helpers.lesson(0), key="first")
    [file] = copy.glob("lessons-*")
    lesson = json.loads(file.read_bytes().partition(b" ")[2])
    del lesson["content"]
    text = json.dumps(lesson).encode()
    (copy / "lessons-00000001-0000000000.jsonl").write_bytes(
        b"%08x %s\n" % (zlib.crc32(text), text)
    )
    file.unlink()
    about = json.loads((copy / "copy.json").read_text())
    (copy / "copy.json").write_text(json.dumps({"version": 1, "meta": about["meta"]}))
    with opened(tmp_path / "tree") as tree:
        tree.learn_one(*helpers.lesson(1), key="second")
    assert taught_keys(str(copy)) == ["first", "second"]


# Snapshots, and checking


def test_a_snapshot_is_the_tree_while_it_goes_on(tmp_path: Path) -> None:
    asked = [helpers.picture(number) for number in range(100, 104)]
    with grown(tmp_path / "tree", COUNT, capacity=6) as tree:
        said = [one.probabilities for one in tree.predict(asked, helpers.LABELS)]
        held = keys(tree)
        assert snapshot(tmp_path / "tree", tmp_path / "copy") == len(tree.routes.leaves())
        tree.learn_one(*helpers.lesson(30), key="later")
        tree.snapshot(tmp_path / "newer")
    for name, more in (("copy", []), ("newer", ["later"])):
        with opened(tmp_path / name) as copy:
            assert keys(copy) == sorted([*held, *more])
            if not more:
                told = copy.predict(asked, helpers.LABELS)
                assert [one.probabilities for one in told] == said
    (tmp_path / "file").write_text("")
    for taken in ("copy", "file"):
        with pytest.raises(StoreError, match="choose a new folder"):
            snapshot(tmp_path / "tree", tmp_path / taken)
    with pytest.raises(StoreError, match="no tree"):
        snapshot(tmp_path / "nothing", tmp_path / "other")


def test_a_snapshot_under_load_is_a_whole_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "EVERY", 1)
    copy = snapshots.copy_memory
    with grown(tmp_path / "tree", COUNT, capacity=6) as tree:

        def and_a_lesson(folder: Path, to: Path) -> Path:
            made = copy(folder, to)
            number = len(tree)
            tree.learn_one(*helpers.lesson(100 + number), key=f"meanwhile {number}")
            return made

        tree.capacity, tree._limit = None, dict.fromkeys(tree._limit, None)
        monkeypatch.setattr(snapshots, "copy_memory", and_a_lesson)
        snapshot(tmp_path / "tree", tmp_path / "copy")
    opened(tmp_path / "copy").close()  # and no leaf holds less than it is said to


@pytest.mark.parametrize("first", [True, False])
def test_a_leaf_that_splits_while_all_are_copied_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    copy, done = snapshots.copy_memory, []
    with grown(tmp_path / "tree", COUNT) as tree:

        def and_a_split(folder: Path, to: Path) -> Path:
            for split in (first, not first):
                if split and not done:
                    done.append(folder)
                    tree._split(0)
                elif not split:
                    made = copy(folder, to)
            return made

        monkeypatch.setattr(snapshots, "copy_memory", and_a_split)
        assert snapshot(tmp_path / "tree", tmp_path / "copy") == 2
        held = keys(tree)
    with opened(tmp_path / "copy") as tree:
        assert keys(tree) == held


def test_a_leaf_that_splits_while_all_are_checked_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with grown(tmp_path, COUNT) as tree:
        look, done = snapshots.holds_memory, []

        def and_a_split(place: Path) -> bool:
            if not done:
                done.append(place)
                tree._split(0)
            return look(place)

        monkeypatch.setattr(snapshots, "holds_memory", and_a_split)
        report = verify_tree(tmp_path)
    assert (report.ok, len(report.leaves)) == (True, 2)


def test_every_leaf_is_checked(tmp_path: Path) -> None:
    with grown(tmp_path, COUNT, capacity=6) as tree:
        first, second = tree.routes.leaves()[:2]
        least = len(leaf(tree, first))
        assert (
            str(tree.verify()) == f"{COUNT} examples in {len(tree.routes.leaves())} leaves checked"
        )
    report = verify_tree(tmp_path)
    assert report.ok
    assert f"{COUNT} examples in" in str(report)
    damage = sqlite3.connect(tmp_path / f"leaf-{second:06d}" / "memory.sqlite3")
    damage.execute("UPDATE example SET key = 'lesson 0' WHERE id = (SELECT min(id) FROM example)")
    damage.execute("UPDATE extent SET data = zeroblob(length(data))")
    damage.commit()
    damage.close()
    shutil.move(tmp_path / f"leaf-{first:06d}", tmp_path / "gone")
    report = verify_tree(tmp_path)
    assert not report.ok
    assert f"leaf {first}, of at least {least:,}) is missing" in str(report)
    assert f"leaf {second}:" in str(report)
    result = CliRunner().invoke(cli.app, ["scale", "verify", "--memory", str(tmp_path)])
    assert result.exit_code == 1
    assert "is missing" in result.output
