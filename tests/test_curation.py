"""Labels changed after the fact: in memory, experts and practice, also after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import differing, knowledge, lesson, measured, model, picture, settings, taught
from tests.test_trainer import assert_counted

from anytimecl.backbone.prior import Prior
from anytimecl.classifier import AnytimeClassifier
from anytimecl.curation import Relabelled, Undone
from anytimecl.errors import LabelError, StoreError
from anytimecl.experts import GaussianExpert
from anytimecl.memory import verify
from anytimecl.review import Vectors


def opened(folder: Path, **options: Any) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, model=measured(), settings=settings(), **options)


def killed(classifier: AnytimeClassifier) -> AnytimeClassifier:
    """As if the process had ended here: the same memory, opened again."""
    folder = classifier.memory.path
    assert folder is not None
    classifier._checkpointer.close()
    classifier.memory.close()
    return opened(folder.parent)


def assert_same_after_a_kill(classifier: AnytimeClassifier) -> AnytimeClassifier:
    before = knowledge(classifier)
    again = killed(classifier)
    assert differing(before, knowledge(again)) == []
    return again


@pytest.fixture
def classifier(tmp_path: Path) -> AnytimeClassifier:
    found = opened(tmp_path / "memory")
    for number in range(12):
        found.learn_one(*lesson(number))
    return found


def test_another_label_replaces_the_one_that_an_image_had(classifier: AnytimeClassifier) -> None:
    before = classifier.memory.labels()["dog"]
    learned = classifier.learn_one(picture(3), "okapi")  # was a dog
    assert (learned.id, learned.replaced, learned.right) == (4, "dog", False)
    assert len(classifier) == 12
    assert classifier.memory.labels()["dog"] == before - 1
    assert classifier.predict(picture(3)).label == "okapi"
    assert_counted(classifier._trainer)
    assert 4 in classifier._trainer.model.instances.examples
    assert_same_after_a_kill(classifier).close()


def test_the_same_label_again_changes_nothing(classifier: AnytimeClassifier) -> None:
    before = knowledge(classifier)
    assert classifier.learn_one(*lesson(3)).id == 4
    assert differing(before, knowledge(classifier)) == []
    classifier.close()


def test_relabel_moves_an_example_everywhere(classifier: AnytimeClassifier) -> None:
    assert classifier.relabel(5, "zebra") == Relabelled(5, "zebra", "cat")
    trainer = classifier._trainer
    assert trainer.label_of(5) == "zebra"
    assert trainer.sampler.state()["labels"][-1] == "zebra"
    assert [seen.label for seen in trainer.model.evidence if seen.example == 5] == ["zebra"]
    assert_counted(trainer)
    assert classifier.relabel(5, "zebra") == Relabelled(5, "zebra", "zebra")  # and nothing happens
    assert classifier.memory.last == 13
    again = assert_same_after_a_kill(classifier)
    assert again.predict(picture(4)).label == "zebra"
    with pytest.raises(StoreError, match="no example 99"):
        again.relabel(99, "cat")
    with pytest.raises(LabelError, match="cannot be taught"):
        again.relabel(5, "none of these")
    again.close()


def test_a_label_that_loses_its_last_example_was_never_seen(tmp_path: Path) -> None:
    with opened(tmp_path / "memory") as classifier:
        classifier.learn_one(picture(0), "llama")
        classifier.learn_one(picture(1), "cat")
        classifier.relabel(1, "okapi")
        assert classifier.labels == classifier._trainer.labels == ["cat", "okapi"]


def test_rename_keeps_what_is_known(classifier: AnytimeClassifier) -> None:
    counts = classifier.memory.labels()
    statistics = classifier._trainer.model.gaussian.now.sums.clone()
    assert classifier.rename_label("dog", "hound") == counts["dog"]
    assert list(classifier.memory.labels().values()) == list(counts.values())
    assert torch.equal(classifier._trainer.model.gaussian.now.sums, statistics)
    assert classifier.labels == classifier._trainer.labels
    with pytest.raises(LabelError, match="merge"):
        classifier.rename_label("hound", "cat")
    with pytest.raises(LabelError, match="no example of 'dog'"):
        classifier.rename_label("dog", "wolf")
    assert_same_after_a_kill(classifier).close()


def test_merge_adds_one_label_to_another(classifier: AnytimeClassifier) -> None:
    counts = classifier.memory.labels()
    assert classifier.merge_labels("dog", "cat") == counts["dog"]
    assert classifier.memory.labels()["cat"] == counts["cat"] + counts["dog"]
    assert "dog" not in classifier._trainer.labels
    assert_counted(classifier._trainer)
    with pytest.raises(LabelError, match="no example of 'dog'"):
        classifier.merge_labels("dog", "cat")
    assert_same_after_a_kill(classifier).close()


def test_undo_goes_back_act_by_act_also_after_a_restart(classifier: AnytimeClassifier) -> None:
    before = list(classifier.memory.ids())
    classifier.learn_one(picture(3), "okapi")
    classifier.rename_label("cat", "puss")
    classifier.merge_labels("tabby cat", "puss")
    classifier = killed(classifier)
    merged, renamed = classifier.undo(2)
    assert (merged.act, merged.label, merged.before) == ("merge", "puss", "tabby cat")
    assert renamed == Undone("rename", (), "puss", "cat")
    classifier = assert_same_after_a_kill(classifier)
    assert classifier.undo() == [Undone("relabel", (4,), "okapi", "dog")]
    assert list(classifier.memory.ids()) == before
    assert_counted(classifier._trainer)
    assert classifier.undo() == [Undone("teach", (12,), "great white shark", None)]
    assert list(classifier.memory.ids()) == before[:-1]
    assert_counted(classifier._trainer)
    classifier = assert_same_after_a_kill(classifier)
    assert verify(classifier.memory).ok
    learned = classifier.learn_one(*lesson(11))  # it may be taught again, as something new
    assert (learned.id, learned.replaced) == (classifier.memory.last, None)
    classifier.close()


def test_undo_is_whole_or_nothing(classifier: AnytimeClassifier) -> None:
    classifier.forget(example_id=2)
    classifier.relabel(5, "zebra")
    before = knowledge(classifier)
    with pytest.raises(StoreError, match="Only 1 act can be undone: forgetting is final"):
        classifier.undo(2)
    assert differing(before, knowledge(classifier)) == []
    classifier.undo()
    with pytest.raises(StoreError, match="Nothing can be undone"):
        classifier.undo()
    classifier.close()


def test_what_was_taken_back_leaves_the_disk_with_the_next_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path / "memory", thumbnails=True) as classifier:
        for number in range(4):
            classifier.learn_one(*lesson(number), source="a private name")
        record = classifier.memory.read([4])[0]
        assert classifier.thumbnail(4) is not None
        classifier.undo()
        assert classifier.thumbnail(4) is None
        assert len(classifier) == 3
    files = [file for file in (tmp_path / "memory").rglob("*") if file.is_file()]
    assert not any(record in file.read_bytes() for file in files)
    with opened(tmp_path / "memory") as classifier:
        assert classifier.memory.labels().keys() == {lesson(n)[1] for n in range(3)}
        assert verify(classifier.memory).ok


def test_forgetting_leaves_nothing_of_corrections(classifier: AnytimeClassifier) -> None:
    folder = classifier.memory.path
    assert folder is not None
    classifier.relabel(5, "secret wombat")
    classifier.relabel(5, "hidden quokka")
    classifier.learn_one(picture(70), "lonely numbat", source="numbat.jpg")
    classifier.relabel(13 + 2, "hidden quokka")
    assert classifier.forget(label="hidden quokka") == 2
    assert_counted(classifier._trainer)
    classifier = assert_same_after_a_kill(classifier)
    classifier.close()
    files = [file for file in folder.parent.rglob("*") if file.is_file()]
    for word in (b"wombat", b"quokka", b"numbat"):
        assert not [file.name for file in files if word in file.read_bytes()], word


def test_a_correction_survives_an_interrupt(
    classifier: AnytimeClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(classifier._trainer.learner, "apply", stop)
        with pytest.raises(KeyboardInterrupt):
            classifier.relabel(5, "zebra")
    other = shutil.copytree(classifier.memory.path.parent, classifier.memory.path.parent / "copy")  # type: ignore[union-attr]
    assert classifier.predict(picture(4)).label == "zebra"  # the memory knows
    classifier.learn_one(*lesson(20))
    with opened(other) as crashed:
        crashed.learn_one(*lesson(20))
        assert differing(knowledge(classifier), knowledge(crashed)) == []
    classifier.close()


def test_rebuild_teaches_labels_as_they_are_now(
    classifier: AnytimeClassifier, tmp_path: Path
) -> None:
    classifier.relabel(5, "zebra")
    classifier.undo(2)
    classifier.learn_one(picture(3), "okapi")
    classifier.rebuild()
    assert_counted(classifier._trainer)
    named = [(picture(n), "okapi" if n == 3 else lesson(n)[1]) for n in range(11)]
    with opened(tmp_path / "fresh") as fresh:
        for image, label in named:
            fresh.learn_one(image, label)
        mine, theirs = knowledge(classifier), knowledge(fresh)
        assert differing(mine | {"event": 0}, theirs | {"event": 0}) == []
    classifier.close()


def test_copies_from_before_one_image_had_one_label_change_together() -> None:
    with taught(range(4)) as classifier:
        for label in ("cat", "dog"):
            row = classifier.memory.rows([2])[0][1]
            classifier.memory.append_row(row._replace(label=label))
        learned = classifier.learn_one(picture(1), "okapi")
        assert classifier.memory.labels()["okapi"] == 3
        assert learned.id == 6
        assert classifier.undo()[0].examples == (2, 5, 6)
        assert [label for _, label in classifier.memory.copies(row.content)] == [
            "dog",
            "cat",
            "dog",
        ]


@pytest.mark.parametrize("sampler", ["uniform", "fifo", "frequency_weighted"])
def test_every_sampler_practises_the_new_label(tmp_path: Path, sampler: str) -> None:
    chosen = settings(sampler=sampler)
    with AnytimeClassifier.open(tmp_path, model=model(), settings=chosen) as classifier:
        for number in range(8):
            classifier.learn_one(*lesson(number))
        classifier.relabel(2, "okapi")
        classifier.rename_label("cat", "puss")
        classifier.undo(3)
        classifier.learn_one(*lesson(9))
        before = knowledge(classifier)
        classifier._checkpointer.close()
        classifier.memory.close()
    with AnytimeClassifier.open(tmp_path, model=model()) as again:
        assert differing(before, knowledge(again)) == []


def test_pages_of_examples(classifier: AnytimeClassifier) -> None:
    classifier.learn_one(picture(50), "okapi", source="zoo/okapi 1.jpg")
    page = classifier.examples(limit=5)
    found = [example.id for example in page.examples]
    while page.next is not None:
        page = classifier.examples(limit=5, after=page.next)
        found += [example.id for example in page.examples]
    assert found == list(range(13, 0, -1))
    assert page.total == 13
    assert {e.label for e in classifier.examples(label="cat").examples} == {"cat"}
    [okapi] = classifier.examples(source="OKAPI").examples
    assert (okapi.source, okapi.label, okapi.says.keys()) == (
        "zoo/okapi 1.jpg",
        "okapi",
        {"tuned", "original", "gaussian"},
    )
    assert okapi.says["gaussian"][0] != "okapi"  # as if it had not been learned
    assert classifier.examples(like=picture(7), limit=1).examples[0].id == 8
    with pytest.raises(StoreError, match="no place to go on"):
        classifier.examples(after="nowhere")
    classifier.close()


def test_an_expert_of_ones_own_says_what_it_would_without_the_example() -> None:
    class Another(GaussianExpert):
        name = "another"

        def __init__(self, dim: int, prior: Prior | None) -> None:
            super().__init__(dim, prior)

    chosen = settings(experts=[Another])
    with AnytimeClassifier.open(model=measured(), settings=chosen) as classifier:
        for number in range(12):
            classifier.learn_one(*lesson(number))
        classifier.learn_one(picture(50), "okapi")
        [alone] = classifier.examples(label="okapi").examples
        assert alone.says.keys() == {"tuned", "original", "gaussian", "another"}
        assert alone.says["another"][0] != "okapi"


def test_what_is_cleared_while_examples_are_reviewed_is_not_kept() -> None:
    with AnytimeClassifier.open(model=measured(), settings=settings()) as classifier:
        classifier.learn_one(picture(1), "dog")
        kept = Vectors(classifier.backbone.spec.dim)
        kept.of([1], classifier._trainer, lambda done, of: kept.clear())
        decoded = []
        kept.of([1], classifier._trainer, lambda done, of: decoded.append(of))
        assert decoded == [1]  # anew


def test_suspicious_examples_come_first() -> None:
    with AnytimeClassifier.open(model=measured(), settings=settings()) as classifier:
        for number in range(10):  # two pictures, again and again, each time with other noise
            image = picture(number % 2)
            image.putpixel((number, 0), (number, 2 * number, 3 * number))
            wrong = number in (4, 7)
            classifier.learn_one(image, ("dog", "cat")[(number + wrong) % 2])
        page = classifier.examples(suspicious=True, limit=2)
        assert {example.id for example in page.examples} == {5, 8}
        second = classifier.examples(suspicious=True, limit=2, after=page.next)
        assert not {example.id for example in second.examples} & {5, 8}
        doubts = [e.suspicion for e in [*page.examples, *second.examples]]
        assert doubts == sorted(doubts, reverse=True)  # type: ignore[type-var]
