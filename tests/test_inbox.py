"""Assisted labelling, and all labels as files."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from tests.helpers import measured, picture, settings

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import ImageError, StoreError
from anytimecl.inbox import Inbox, export_labels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    for number in range(12):
        picture(number).save(folder / f"{number:02}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def opened(tmp_path: Path) -> AnytimeClassifier:
    return AnytimeClassifier.open(
        tmp_path / "memory", model=measured(), settings=settings(), thumbnails=True
    )


def test_it_asks_about_all_once_and_goes_on_where_it_stopped(tmp_path: Path, folder: Path) -> None:
    asked = []
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder, ["cat", "dog"])
        for number in range(5):
            item = inbox.next()
            assert item is not None
            assert {proposal.label for proposal in item.proposals} >= {"cat", "dog"}
            asked.append(item.source)
            if number == 2:
                inbox.skip(item)
            else:
                assert inbox.answer(item, ("cat", "dog")[number % 2]).id == len(classifier)
        assert len(classifier) == 4
        assert classifier.examples().examples[0].source == asked[-1]
        assert classifier.thumbnail(1) is not None
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder, ["cat", "dog"])
        assert len(inbox) == 13 - 5  # the broken one is not found out yet
        while (item := inbox.next()) is not None:
            asked.append(item.source)
            inbox.answer(item, item.proposals[0].label)
        assert len(inbox) == 0
        assert sorted(asked) == sorted(str(file) for file in folder.glob("[0-9]*.png"))
        assert list(inbox.failures) == [str(folder / "broken.png")]
        assert len(classifier) == 11


def test_an_image_that_goes_away_meanwhile_is_passed_over(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder, ["cat", "dog"])
        inbox.prepare()
        for file in sorted(folder.glob("0*.png")):
            file.unlink()
        item = inbox.next()
        assert item is not None
        Path(item.source).unlink()  # just before it is answered: its tokens are known
        with pytest.raises(ImageError, match="no such file"):
            inbox.answer(item, "cat")
        assert len(classifier) == 0
        last = inbox.next()
        assert last is not None
        assert last.source != item.source
        inbox.answer(last, "cat")
        assert inbox.next() is None
        assert len(inbox) == 0
        assert len(inbox.failures) == 12  # ten of them, that one, and the broken one
        assert inbox.sure(0.0) == []
        with pytest.raises(ImageError, match="no such file"):
            inbox.load(item)


def test_undo_takes_back_answers_and_skips(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder)
        first = inbox.next()
        assert first is not None
        assert first.proposals == ()  # nothing is known yet
        inbox.answer(first, "okapi")
        second = inbox.next()
        assert second is not None
        inbox.skip(second)
        assert inbox.undo().source == second.source
        assert len(classifier) == 1
        assert inbox.undo().source == first.source
        assert len(classifier) == 0
        with pytest.raises(StoreError, match="nothing to undo"):
            inbox.undo()
        inbox.answer(first, "okapi")
        classifier.learn_one(picture(99), "cat")
        with pytest.raises(StoreError, match="Something else was taught"):
            inbox.undo()


def test_what_is_labelled_is_not_asked_about_until_that_is_taken_back(
    tmp_path: Path, folder: Path
) -> None:
    with opened(tmp_path) as classifier:
        classifier.learn_one(folder / "03.png", "cat")
        inbox = Inbox(classifier, folder)
        inbox.prepare()
        assert len(inbox) == 11
        item = inbox.next()
        assert item is not None
        inbox.answer(item, "okapi")
        assert item.source != str(folder / "03.png")
        inbox.undo()
        with pytest.raises(StoreError, match="nothing to undo"):
            inbox.undo()  # what was known before is no answer of this inbox
        item = inbox.next()
        assert item is not None
        inbox.answer(item, "okapi")
        classifier.undo()
        assert len(inbox) == 10
    with opened(tmp_path) as classifier:
        assert len(Inbox(classifier, folder)) == 11 + 1  # the broken one is not found out yet


def test_another_file_of_the_same_name_is_another_image(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder)
        item = inbox.next()
        assert item is not None
        inbox.answer(item, "cat")
        left = len(Inbox(classifier, folder))
        picture(77).save(item.source)
        assert len(Inbox(classifier, folder)) == left + 1


def test_nothing_of_what_was_answered_stays_beside_the_memory(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder)
        inbox.prepare()
        item = inbox.next()
        assert item is not None
        vector = inbox._state.vectors[inbox._keys[item.number]].tobytes()
        files = list((tmp_path / "memory/inbox").iterdir())
        assert any(vector in file.read_bytes() for file in files)
        inbox.answer(item, "cat")
        assert not any(vector in file.read_bytes() for file in files)
        assert not any(Path(item.source).name.encode() in file.read_bytes() for file in files)
        assert len(Inbox(classifier, folder)) == 12  # and the others are still ready
        assert Inbox(classifier, folder).ready == 11


def test_an_inbox_of_version_1_goes_on(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder)
        inbox.prepare()
        item = inbox.next()
        assert item is not None
        learned = inbox.answer(item, "cat")
        [file] = (tmp_path / "memory/inbox").glob("*.jsonl")
        names = dict(zip(inbox._keys, inbox._names, strict=True))
        lines = [json.loads(line) for line in file.read_text().splitlines()[1:]]
        old = [{"name": names[told.pop("key")]} | told for told in lines]
        assert old[-1] == {"name": item.source, "did": "answer", "example": learned.id}
        file.write_text("".join(json.dumps(told) + "\n" for told in old))
        again = Inbox(classifier, folder)
        assert (len(again), again.ready) == (12, 11)
        assert item.source not in file.read_text()
        assert again.undo().source == item.source


def test_what_is_sure_is_proposed_and_not_taught(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder, ["cat", "dog"])
        inbox.prepare()
        found = inbox.sure(threshold=0.0)
        assert len(found) == 12
        sureness = [item.proposals[0].probability for item in found]
        assert sureness == sorted(sureness, reverse=True)
        assert inbox.sure(threshold=1.1) == []
        assert len(classifier) == 0


def test_a_source_that_is_no_image_is_not_copied(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    with opened(tmp_path) as classifier:
        classifier.learn_one(picture(50), "cat", source=str(secret))
        export_labels(classifier, tmp_path / "out", "folders")
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert not [file for file in files if b"hunter2" in file.read_bytes()]


def test_labels_as_files(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        classifier.learn_one(folder / "00.png", "cat")
        classifier.learn_one(picture(50), "a/b: c", source="gone.jpg")
        assert export_labels(classifier, tmp_path / "out.csv").examples == 2
        assert export_labels(classifier, tmp_path / "out.jsonl", "jsonl").examples == 2
        assert export_labels(classifier, tmp_path / "out", "folders") == (2, 0)
        with pytest.raises(StoreError, match="there already"):
            export_labels(classifier, tmp_path / "out", "folders")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["label"], row["source"]) for row in rows] == [
        ("1", "cat", str(folder / "00.png")),
        ("2", "a/b: c", "gone.jpg"),
    ]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == ["cat", "a/b: c"]
    assert (tmp_path / "out/cat/1-00.png").read_bytes() == (folder / "00.png").read_bytes()
    assert [file.name for file in (tmp_path / "out/a_b_ c").iterdir()] == ["2-gone.webp"]


def test_sources_that_no_file_could_be_called_are_shortened(tmp_path: Path) -> None:
    """Who teaches from afar names them."""
    with opened(tmp_path) as classifier:
        for number, source in enumerate(["a\0b.png", "x" * 300 + ".png", "/", "c:d?"]):
            classifier.learn_one(picture(number), "cat", source=source)
        assert export_labels(classifier, tmp_path / "out", "folders") == (4, 0)
    names = sorted(file.name for file in (tmp_path / "out/cat").iterdir())
    assert names == ["1-a_b.webp", f"2-{'x' * 96}.webp", "3-.webp", "4-c_d_.webp"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_labels_go_where_a_link_leads_and_into_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    with opened(tmp_path) as classifier:
        with pytest.raises(StoreError, match="a pipe or a device"):
            export_labels(classifier, tmp_path / "pipe")
        export_labels(classifier, tmp_path / "link.csv")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("id,label")


def test_labels_that_no_file_system_tells_apart_have_folders_of_their_own(tmp_path: Path) -> None:
    labels = ["a/b", "a:b", "a_b", "猫" * 150, "猫" * 149 + "犬"]
    with opened(tmp_path) as classifier:
        for number, label in enumerate(labels):
            classifier.learn_one(picture(number), label, source="犬" * 90 + ".png")
        assert export_labels(classifier, tmp_path / "out", "folders") == (5, 0)
    found = {folder.name: len(list(folder.iterdir())) for folder in (tmp_path / "out").iterdir()}
    cut = "猫" * 66
    assert found == {"a_b": 1, "a_b (2)": 1, "a_b (3)": 1, cut: 1, f"{cut} (2)": 1}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_source_that_is_a_pipe_blocks_no_export(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with opened(tmp_path) as classifier:
        classifier.learn_one(picture(1), "cat", source=str(tmp_path / "pipe.png"))
        assert export_labels(classifier, tmp_path / "out", "folders") == (1, 0)


def test_nothing_is_undone_for_an_image_that_is_gone(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder)
        item = inbox.next()
        assert item is not None
        inbox.answer(item, "cat")
        Path(item.source).unlink()
        with pytest.raises(StoreError, match="is gone, or changed since"):
            Inbox(classifier, folder).undo()
        assert len(classifier) == 1


def test_other_images_without_a_name_are_other_images(tmp_path: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, [picture(1), picture(2)])
        while (item := inbox.next()) is not None:
            inbox.skip(item)
        assert len(Inbox(classifier, [picture(1), picture(2)])) == 0
        assert len(Inbox(classifier, [picture(1), picture(3)])) == 1


def test_an_answer_that_moves_an_image_back_counts(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder)
        item = inbox.next()
        assert item is not None
        inbox.answer(item, "cat")
        classifier.learn_one(item.source, "dog", key="moved")
        inbox.answer(item, "cat")
        assert classifier.memory.labels() == {"cat": 1}


def test_what_is_written_after_an_interrupted_write_is_kept(tmp_path: Path, folder: Path) -> None:
    with opened(tmp_path) as classifier:
        inbox = Inbox(classifier, folder)
        inbox.prepare(1)
        [notes] = (tmp_path / "memory/inbox").glob("*.jsonl")
        for file in (notes, notes.with_suffix(".f16")):
            with file.open("ab") as torn:
                torn.write(b'{"k')
        inbox.prepare(1)
        item = inbox.next()
        assert item is not None
        inbox.skip(item)
        again = Inbox(classifier, folder)
        assert again._state.done == inbox._state.done != {}
        assert again._state.vectors.keys() == inbox._state.vectors.keys()
        for key, vector in inbox._state.vectors.items():
            assert vector.tobytes() == again._state.vectors[key].tobytes()
