"""A full disk, flipped bytes and a cut log: what a whole classifier makes of them."""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from random import Random

import pytest
from tests.disks import with_ballast, with_limit
from tests.helpers import differing, knowledge, lesson, lessons, model, picture, settings, taught

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import AnytimeError
from anytimecl.memory import Row, StoreWarning, open_memory, verify
from anytimecl.memory.database import FILE

ROOT = Path(__file__).resolve().parents[1]
LOG = FILE + "-wal"


def opened(folder: Path) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, model=model(), settings=settings())


# A full disk. It runs apart: limits and mounts hold for a whole process.

SCRIPT = """
import sys
import warnings
from pathlib import Path
from tests.helpers import differing, knowledge, lesson, model, picture, settings, taught
from anytimecl import checkpointer
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import AnytimeError, CheckpointError, StoreError
from anytimecl.memory import StoreWarning, compact, verify

warnings.simplefilter("always")
checkpointer.CHECKPOINT_EVERY = 5
folder = Path(sys.argv[1]) / "memory"
straight = taught([])

def opened():
    return AnytimeClassifier.open(folder, model=model(), settings=settings())

def check(classifier):
    assert differing(knowledge(straight), knowledge(classifier)) == []
    report = verify(classifier.memory)
    assert report.ok, str(report)
    assert classifier.predict(picture(1)) == straight.predict(picture(1))

def learn(classifier):
    classifier.learn_one(*lesson(len(classifier)))
    straight.learn_one(*lesson(len(straight)))  # only what was acknowledged

def fails(action, *arguments):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            action(*arguments)
        except AnytimeError as error:
            text = str(error)
            assert "disk is full" in text or "could not be written" in text, text
            return type(error).__name__
        finally:
            assert all(issubclass(each.category, StoreWarning) for each in told), told
    return None

classifier = opened()
for _ in range(30):
    learn(classifier)

# while learning: appends and checkpoints fail, and what is known stays
classifier.memory.truncate_log()
full()
for _ in range(10_000):
    if fails(learn, classifier):
        break
else:
    raise AssertionError("the disk never became full")
check(classifier)
if fails(classifier.consolidate, 1) != "StoreError":  # its entry is small, and may have fitted
    straight.consolidate(1)
check(classifier)
fails(classifier.close)
room()
classifier = opened()
check(classifier)
for _ in range(7):
    learn(classifier)
check(classifier)
classifier.consolidate(1)
straight.consolidate(1)
check(classifier)

# a checkpoint alone
classifier.memory.truncate_log()
classifier._checkpointer.settle()
full()
outcome = fails(classifier._save)
assert outcome == "CheckpointError", outcome
check(classifier)
room()
classifier._save()

# while compacting
for example in (3, 4, 5, 9, 12, 20, 21, 22):
    classifier.forget(example_id=example)
classifier.rebuild()
before = knowledge(classifier)
full()
assert fails(compact, classifier.memory) == "StoreError"
assert differing(before, knowledge(classifier)) == []
assert verify(classifier.memory).ok
room()
assert compact(classifier.memory) > 0
assert verify(classifier.memory).ok
learned = classifier.learn_one(*lesson(40))
classifier.close()
classifier = opened()
assert learned.id in dict(classifier.memory.ids())
classifier.close()
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_files_that_may_not_grow(tmp_path: Path) -> None:
    with_limit(SCRIPT, 30_000, tmp_path)


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with_ballast(SCRIPT, 6, tmp_path)


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory of 40 lessons, the last six of them in no checkpoint."""
    folder = tmp_path_factory.mktemp("sound") / "memory"
    with opened(folder) as classifier:
        classifier.learn_many(lessons(30))
        classifier.learn_one(picture(50), "dog", candidates=["dog", "itap"], key="a key")
        classifier.forget(example_id=7)
        classifier.learn_many(lessons(4, start=30))
    with opened(folder) as classifier:
        classifier.learn_many(lessons(6, start=34))
        classifier.memory.close()  # as a crash, without a checkpoint
    return folder


def is_part(row: Row, of: Row) -> bool:
    """The same, or without something that need not be known of an example."""
    may_lack = ("content", "source", "thumbnail")
    known = row._replace(**{f: getattr(of, f) for f in may_lack if getattr(row, f) is None})
    return known == of


def flip_and_use(sound: Path, folder: Path, random: Random) -> str:
    """Flip one byte of the database, open it, and learn on; what came of it."""
    with open_memory(sound, read_only=True) as memory:
        stored = dict(memory.rows(memory.all_ids()))
    shutil.copytree(sound, folder)
    data = bytearray((folder / FILE).read_bytes())
    data[random.randrange(len(data))] ^= random.randrange(1, 256)
    (folder / FILE).write_bytes(data)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with AnytimeClassifier.open(folder, model=model()) as classifier:
                found = dict(classifier.memory.ids())
                learned = classifier.learn_one(*lesson(60))
                assert classifier.predict(picture(1)).label in classifier.labels
                damaged = not verify(classifier.memory).ok
                # Whatever is handed out is what was stored; if nothing is damaged, all of it.
                rows = dict(classifier.memory.rows(list(found)))
                assert all(is_part(row, stored[example]) for example, row in rows.items())
                assert damaged or rows == stored
            assert learned.id not in found
        except AnytimeError as error:
            refused = str(error)
        else:
            refused = ""
    if refused:
        assert "damaged" in refused or "not a memory" in refused, refused
        return "refused"
    assert all(issubclass(each.category, StoreWarning) for each in told), told
    if told:
        assert damaged
        return "used without it, and told"
    return "found by verify" if damaged else "of no consequence"


def flip_often(sound: Path, folder: Path, times: int, seed: int) -> dict[str, int]:
    random, outcomes = Random(seed), dict[str, int]()
    for time in range(times):
        outcome = flip_and_use(sound, folder / str(time), random)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        shutil.rmtree(folder / str(time))
    return outcomes


def test_15_flipped_bytes(sound: Path, tmp_path: Path) -> None:
    outcomes = flip_often(sound, tmp_path, 15, seed=1)
    assert len(outcomes) >= 2, outcomes


@pytest.mark.slow
def test_300_flipped_bytes(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = flip_often(sound, tmp_path, 300, seed=2)
    with capsys.disabled():
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        sys.stdout.write(f"\n300 flipped bytes: {told}\n")


def killed_copy(folder: Path, to: Path, count: int, saved: int) -> Path:
    """What a killed process leaves: all lessons in the log, a checkpoint of the first `saved`."""
    with opened(folder) as classifier:
        for number in range(count):
            classifier.learn_one(*lesson(number))
            if number + 1 == saved:
                classifier._save()
        shutil.copytree(folder, to)
    return to


@pytest.mark.parametrize("saved", [0, 4, 12])
@pytest.mark.parametrize("keep", [0.0, 0.4, 0.8, 1.0])
def test_a_cut_log_loses_its_end_and_says_so(tmp_path: Path, keep: float, saved: int) -> None:
    folder = killed_copy(tmp_path / "a", tmp_path / "b", 12, saved)
    log = folder / LOG
    size = log.stat().st_size
    with log.open("r+b") as file:
        file.truncate(int(size * keep))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        classifier = opened(folder)
    left = len(classifier)
    assert [id_ for id_, _ in classifier.memory.ids()] == list(range(1, left + 1))
    if left < 12:
        assert [each.category for each in told] == [StoreWarning]
        assert f"lost its events {left + 1} to 12" in str(told[0].message)
        assert classifier.learn_one(*lesson(12)).id > 12
    else:
        assert not told
    if saved <= left:  # the checkpoint knows nothing that is lost
        straight = taught(range(left))
        if left < 12:
            with pytest.warns(StoreWarning):
                straight.memory.admit_loss(12)
            straight.learn_one(*lesson(12))
        assert differing(knowledge(straight), knowledge(classifier)) == []
    report = verify(classifier.memory)
    assert not report.damaged
    assert not report.problems
    classifier.close()
    with open_memory(folder) as memory:
        assert verify(memory).ok
