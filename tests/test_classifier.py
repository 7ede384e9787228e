"""AnytimeClassifier, as its users meet it: what it answers, what it keeps, what it refuses."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from tests.helpers import (
    FAST,
    LABELS,
    changed,
    differing,
    knowledge,
    lesson,
    lessons,
    measured,
    model,
    picture,
    settings,
    taught,
)

from anytimecl import checkpoint as checkpoints
from anytimecl import checkpointer, opening, predicting
from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone.text import LabelCache
from anytimecl.backbone.trunk import block
from anytimecl.blend import BLENDS, Estimates
from anytimecl.blend import blend as blend_of
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import CODECS, ImageBytes
from anytimecl.errors import (
    AnytimeError,
    CheckpointError,
    ImageError,
    KeyUsedError,
    LabelError,
    ModelError,
    StoreError,
)
from anytimecl.images import load_image
from anytimecl.labels import NONE_OF_THESE
from anytimecl.memory import StoreWarning, backup, open_memory
from anytimecl.prediction import Prediction
from anytimecl.settings import Settings
from anytimecl.trainer import Learned, Trainer

NOVEL = ["golden retriever", "itap", "bad"]  # never taught here
# The others want a fit to a data set before they can store anything.
USABLE = sorted(CODECS)


def opened(folder: Path, **options: Any) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, **{"model": model(), **options})


def values(predictions: list[Prediction]) -> list[list[float]]:
    return [list(prediction.probabilities.values()) for prediction in predictions]


# Asking


def zero_shot(images: list[PIL.Image.Image], labels: list[str]) -> torch.Tensor:
    """The original model by hand: whole blocks, cosines, a softmax written out."""
    backbone = model()
    spec, params = backbone.spec, backbone.tail
    x = backbone.encode(images)
    x = block(params, spec.tail, spec.tail.last, x)[:, 0]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    x = x * params["post_layernorm.weight"] + params["post_layernorm.bias"]
    x = x @ params["visual_projection.weight"].T
    vectors = backbone.embed_labels(labels)
    cosines = x @ vectors.T / (x.norm(dim=1, keepdim=True) * vectors.norm(dim=1))
    odds = (spec.logit_scale * cosines).exp()
    return odds / odds.sum(1, keepdim=True)


def test_zero_shot_is_the_original_models_softmax() -> None:
    images, labels = [picture(n) for n in range(6)], list(LABELS)
    expected = zero_shot(images, labels)
    classifier = taught([])
    found = classifier.predict(images, labels)
    torch.testing.assert_close(torch.tensor(values(found)), expected, rtol=1e-4, atol=1e-6)
    for prediction, row in zip(found, expected.tolist(), strict=True):
        assert prediction.label == labels[row.index(max(row))]
        assert prediction.probability == max(prediction.probabilities.values())
        assert prediction.original == prediction.probabilities
        assert prediction.tuned == {}
        assert prediction.none_of_these == 0
        assert prediction.spoke == "original"
    assert len({prediction.label for prediction in found}) > 1


def test_after_learning_both_models_are_blended() -> None:
    classifier = taught(range(20), settings=settings(blend="ocw"))
    labels, image = [*LABELS, *NOVEL], picture(77)
    found, stats = classifier.predict(image, labels), classifier.stats()
    for label in labels:
        record = stats.get(label)
        alpha = 0.0
        if record is not None:
            alpha = record.tuned / (record.tuned + record.original + 1e-8)
            assert record.weight == pytest.approx(alpha, abs=1e-6)
        expected = alpha * found.tuned[label] + (1 - alpha) * found.original[label]
        assert found.probabilities[label] == pytest.approx(expected, abs=1e-6)
    original = zero_shot([image], labels)[0].tolist()
    assert list(found.original.values()) == pytest.approx(original, abs=1e-5)
    assert found.tuned != pytest.approx(found.original, abs=1e-3)
    assert sum(found.tuned.values()) == pytest.approx(1, abs=1e-5)


def test_one_image_gives_one_prediction_and_a_list_gives_a_list() -> None:
    classifier = taught(range(8))
    images = [picture(n) for n in range(4)]
    one = [classifier.predict(image, LABELS) for image in images]
    for many in (classifier.predict(images, LABELS), classifier.predict(tuple(images), LABELS)):
        assert [each.label for each in many] == [each.label for each in one]
        np.testing.assert_allclose(values(many), values(one), atol=1e-6)
    assert len(classifier.predict([images[0]], LABELS)) == 1
    proba = classifier.predict_proba(images, LABELS)
    assert proba.shape == (4, len(LABELS))
    assert proba.dtype == np.float32
    np.testing.assert_allclose(proba, values(one), atol=1e-6)
    np.testing.assert_allclose(classifier.predict_proba(images[2], LABELS), proba[2], atol=1e-6)
    assert classifier.predict_proba(images[2], LABELS).shape == (len(LABELS),)


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize("labels", [LABELS, NOVEL])
def test_no_images_give_no_predictions(blend: str, labels: list[str]) -> None:
    classifier = taught(range(3), settings=settings(blend=blend))
    assert classifier.predict([], labels) == []
    assert classifier.predict_proba([], labels).shape == (0, len(labels))


def test_probabilities_come_in_the_order_asked() -> None:
    classifier = taught(range(8))
    labels = ["dog", "itap", "cat", "great white shark"]
    forwards = classifier.predict_proba(picture(5), labels)
    backwards = classifier.predict_proba(picture(5), labels[::-1])
    np.testing.assert_allclose(forwards, backwards[::-1], atol=1e-6)
    assert len(set(forwards.tolist())) == 4
    found = classifier.predict(picture(5), labels)
    assert list(found.probabilities) == list(found.tuned) == list(found.original) == labels
    best = sorted(zip(labels, forwards.tolist(), strict=True), key=lambda pair: -pair[1])
    assert [label for label, _ in found.top(2)] == [label for label, _ in best[:2]]


def test_a_label_given_twice_counts_once() -> None:
    classifier = taught(range(8))
    once = classifier.predict(picture(5), ["cat", "dog"])
    assert classifier.predict(picture(5), ["cat", " dog", "cat ", "dog"]) == once
    assert classifier.predict_proba(picture(5), ["cat", "dog", "cat"]).shape == (3,)


def test_without_labels_it_chooses_among_all_that_it_learned() -> None:
    classifier = taught([])
    with pytest.raises(LabelError, match="Nothing is learned yet"):
        classifier.predict(picture(0))
    classifier.learn_one(picture(0), "cat")
    classifier.learn_one(picture(1), "an unheard of thing")
    assert list(classifier.predict(picture(2)).probabilities) == ["cat", "an unheard of thing"]
    assert classifier.labels == ["cat", "an unheard of thing"]


def test_ten_thousand_labels() -> None:
    """A text tower would take minutes over so many, so each gets a vector by its checksum."""

    def text(texts: Sequence[str]) -> torch.Tensor:
        seeds = [torch.Generator().manual_seed(zlib.crc32(each.encode())) for each in texts]
        vectors = torch.stack([torch.randn(model().spec.dim, generator=seed) for seed in seeds])
        return vectors / vectors.norm(dim=1, keepdim=True)

    backbone = dataclasses.replace(model(), text=text, label_cache=LabelCache())
    classifier = AnytimeClassifier.open(model=backbone, settings=settings())
    labels = [f"label {number}" for number in range(10_000)]
    for number in range(40):
        classifier.learn_one(picture(number), labels[number * 7])
    proba = classifier.predict_proba([picture(3), picture(99)], labels)
    assert proba.shape == (2, 10_000)
    assert np.isfinite(proba).all()
    assert (proba >= 0).all()
    found = classifier.predict(picture(3), labels)
    assert found.label == max(found.probabilities, key=found.probabilities.__getitem__)


def test_a_list_asked_again_is_not_embedded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = taught(range(8))
    embedded: list[int] = []
    keep = Trainer.embed

    def embed(self: Trainer, labels: Sequence[str]) -> torch.Tensor:
        embedded.append(len(labels))
        return keep(self, labels)

    monkeypatch.setattr(Trainer, "embed", embed)
    asked = [*LABELS, *NOVEL]
    first = classifier.predict(picture(1), asked)
    assert classifier.predict(picture(1), list(asked)) == first
    assert classifier.predict(picture(1), (label for label in asked)) == first
    assert embedded == [7]
    classifier.learn_one(*lesson(8))
    after = classifier.predict(picture(1), asked)
    assert after != first
    assert embedded == [7]
    classifier.forget(label="dog")
    assert classifier.predict(picture(1), asked) != after
    assert classifier._trainer.rows.keys() == set(classifier.labels)
    assert embedded == [7, 7]  # nothing is kept of what was forgotten
    assert list(classifier.predict(picture(1)).probabilities) == classifier.labels
    monkeypatch.setattr(predicting, "KEPT_BYTES", 0)
    for _ in range(2):
        classifier.predict(picture(1), asked)
    assert embedded == [7, 7, len(classifier.labels), 7, 7]


def test_asking_changes_nothing() -> None:
    classifier = taught(range(10))
    before = knowledge(classifier)
    answers = values(classifier.predict([picture(n) for n in range(5)], [*LABELS, *NOVEL]))
    classifier.predict_proba(picture(1), NOVEL)
    classifier.stats()
    again = values(classifier.predict([picture(n) for n in range(5)], [*LABELS, *NOVEL]))
    assert differing(before, knowledge(classifier)) == []
    assert again == answers


# None of these


def test_the_mass_of_none_of_these() -> None:
    classifier = taught(range(20))
    learner, labels = classifier._trainer.learner, [*LABELS, *NOVEL]
    masses = []
    expert, pool = classifier._trainer.model.gaussian, classifier._trainer.model.weights
    for n in range(50, 58):
        found = classifier.predict(picture(n), labels)
        tokens, vectors = model().encode([picture(n)]), model().embed_labels(labels)
        rows = torch.tensor([classifier._trainer.rows.get(label, -1) for label in labels])
        odds = learner.tuned_logits(tokens, vectors, rows)[0].double().exp().tolist()
        other = learner.other_logit.double().exp().item()  # against all the labels asked
        images = learner.original_images(tokens)
        scores, typical = expert.judged(images, rows.tolist())
        above = max(
            score - usual / 2
            for score, usual, row in zip(
                scores[0].tolist(), typical.tolist(), rows.tolist(), strict=True
            )
            if row >= 0
        )
        sure = pool["tuned"] * math.log(other / sum(odds)) - pool["gaussian"] * above
        assert found.none_of_these == pytest.approx(1 / (1 + math.exp(-sure)), rel=1e-3)
        masses.append(found.none_of_these)
    assert len(set(masses)) == 8


@pytest.mark.parametrize("blend", ["ocw", "average"])
def test_without_the_experts_none_of_these_is_the_tuned_models_other(blend: str) -> None:
    classifier = taught(range(20), settings=settings(blend=blend))
    learner, labels = classifier._trainer.learner, [*LABELS, *NOVEL]
    for n in range(3):
        found = classifier.predict(picture(n), labels)
        tokens, vectors = model().encode([picture(n)]), model().embed_labels(labels)
        rows = torch.tensor([classifier._trainer.rows.get(label, -1) for label in labels])
        odds = learner.tuned_logits(tokens, vectors, rows)[0].double().exp().tolist()
        other = learner.other_logit.double().exp().item()
        assert found.none_of_these == pytest.approx(other / (sum(odds) + other), rel=1e-4)


def test_a_threshold_gives_none_of_these_as_an_answer() -> None:
    classifier = taught(range(20))
    asked = picture(50)
    found = classifier.predict(asked, LABELS, threshold=1.0)
    mass = found.none_of_these
    assert found.label in LABELS
    below = classifier.predict(asked, LABELS, threshold=mass * 0.999)
    assert below.label == NONE_OF_THESE
    assert below.probability == mass
    assert below.probabilities == found.probabilities
    assert classifier.predict(asked, LABELS, threshold=mass * 1.001) == found
    by_default = NONE_OF_THESE if mass > 0.5 else found.label
    assert classifier.predict(asked, LABELS).label == by_default
    assert classifier.predict(asked, NOVEL, threshold=0.0).label in NOVEL  # nothing learned


def test_spoke_says_whose_word_weighs_more() -> None:
    for blend, voice in (("original", "original"), ("tuned", "tuned"), ("average", "original")):
        classifier = taught(range(10), settings=settings(blend=blend))
        assert classifier.predict(picture(3), LABELS).spoke == voice


# Labels never seen


@pytest.mark.parametrize("codec", USABLE)
def test_answers_over_labels_never_seen_never_change(codec: str) -> None:
    """Bit for bit, under every blend, after learning, consolidating, forgetting, rebuilding."""
    classifier = taught([], settings=settings(codec=codec))
    images = [picture(n) for n in range(3)]

    def answers() -> dict[str, Any]:
        found = {}
        for blend in BLENDS:
            classifier.settings = dataclasses.replace(classifier.settings, blend=blend)
            predictions = classifier.predict(images, NOVEL)
            found[blend] = values(predictions), [each.label for each in predictions]
            assert classifier.predict_proba(images, NOVEL).tolist() == values(predictions)
        return found

    before = answers()
    for number in range(12):
        classifier.learn_one(*lesson(number))
        assert answers() == before
    classifier.consolidate(2)
    assert answers() == before
    classifier.forget(example_id=3)
    classifier.forget(label="dog")
    assert answers() == before
    classifier.rebuild()
    assert answers() == before
    # A forgotten label is one never seen.
    zero = taught([], settings=settings(codec=codec))
    assert values(classifier.predict(images, ["dog", *NOVEL])) == values(
        zero.predict(images, ["dog", *NOVEL])
    )


@pytest.mark.parametrize("blend", sorted(BLENDS.keys() - {"tuned"}))
def test_beside_labels_learned_others_keep_the_original_probability(blend: str) -> None:
    classifier, zero = taught(range(12), settings=settings(blend=blend)), taught([])
    labels, images = ["cat", *NOVEL, "dog"], [picture(n) for n in range(4)]
    now, then = classifier.predict(images, labels), zero.predict(images, labels)
    for one, two in zip(now, then, strict=True):
        assert [one.probabilities[y] for y in NOVEL] == [two.probabilities[y] for y in NOVEL]
    if blend not in ("original", "ocw_rounded"):  # these may well choose the original for both
        assert any(
            one.probabilities[y] != two.probabilities[y]
            for one, two in zip(now, then, strict=True)
            for y in ("cat", "dog")
        )


# Images that were taught


def altered(image: PIL.Image.Image, number: int) -> PIL.Image.Image:
    """Nearly the same."""
    pixels = np.array(image)
    pixels[number, number] ^= 1
    return PIL.Image.fromarray(pixels, "RGB")


@pytest.mark.parametrize("codec", ["attention-pca", "image", "tokens-fp16", "tokens-fp32"])
@pytest.mark.parametrize("backbone", [model(), measured()])
def test_an_image_that_was_taught_is_answered_as_it_was_taught(codec: str, backbone: Any) -> None:
    """Whatever all experts say: they know near copies of it under another label."""
    classifier = taught([], settings=settings(codec=codec), model=backbone)
    for number in range(8):
        classifier.learn_one(*lesson(number))
    image = picture(100)
    found = classifier.predict(image, LABELS, threshold=1.0)
    wrong = found.label
    right = min((y for y in LABELS if y != wrong), key=found.original.__getitem__)
    classifier.learn_one(image, right)
    for number in range(34):
        classifier.learn_one(altered(image, number), wrong)
        opinions = classifier.opinions(classifier.encode([image]), LABELS)
        alone = dataclasses.replace(opinions, copy=None, copy_of=None)
        if blend_of("pool", alone).argmax() != LABELS.index(right):
            break
    else:
        pytest.fail("Nobody says otherwise: there is nothing to show.")
    found = classifier.predict(image, LABELS)
    assert (found.label, found.spoke) == (right, "instance")
    assert found.probability == pytest.approx(1)
    assert found.none_of_these == 0
    # Where its label is not asked about, it is an image like others; novel labels stay as always.
    others = [label for label in LABELS if label != right]
    assert classifier.predict(image, others, threshold=1.0).label in others
    asked = [right, *NOVEL]
    before = taught([]).predict(image, asked)
    after = classifier.predict(image, asked)
    assert [after.probabilities[y] for y in NOVEL] == [before.probabilities[y] for y in NOVEL]


def test_taught_twice_an_image_has_its_newest_label() -> None:
    classifier = taught(range(8))
    classifier.learn_one(picture(50), "cat")
    last = classifier.learn_one(picture(50), "dog").id
    assert classifier.predict(picture(50), LABELS).label == "dog"
    classifier.forget(example_id=last)
    assert classifier.predict(picture(50), LABELS).label == "cat"
    classifier.forget(label="cat")
    assert classifier.predict(picture(50), LABELS).spoke != "instance"


def test_an_image_is_known_again_in_a_reopened_memory_and_by_other_means(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(4))
        classifier.learn_tokens(classifier.encode([picture(50)])[0], "dog")
        classifier.save_pretrained(tmp_path / "saved")
    for folder in (tmp_path, tmp_path / "saved"):
        with opened(folder, read_only=True) as again:
            found = again.predict([picture(50), picture(0)], LABELS)
            assert [each.label for each in found] == ["dog", lesson(0)[1]]
            assert {each.spoke for each in found} == {"instance"}


@pytest.mark.parametrize("label", ["none of these", "None of These", " NONE  OF THESE "])
def test_none_of_these_cannot_be_taught(label: str) -> None:
    classifier = taught(range(3))
    before, told = knowledge(classifier), []
    with pytest.raises(LabelError, match="cannot be taught"):
        classifier.learn_one(picture(5), label)
    with pytest.raises(LabelError, match="cannot be taught"):
        classifier.learn_tokens(classifier.encode([picture(5)])[0], label)
    with pytest.raises(LabelError, match="cannot be taught"):
        classifier.learn_many([(picture(5), label)])
    assert classifier.learn_many([(picture(5), label)], report=told.append) == 0
    assert isinstance(told[0], LabelError)
    assert differing(before, knowledge(classifier)) == []


def test_none_of_these_is_no_candidate() -> None:
    """Its probability as a label would look like a refusal."""
    with pytest.raises(LabelError, match="leave it out"):
        taught(range(3)).predict(picture(5), [*LABELS, "None of these"])


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan"), "0.5", None])
def test_a_threshold_is_a_probability(threshold: Any) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        taught(range(3)).predict(picture(5), LABELS, threshold=threshold)


@pytest.mark.parametrize(
    ("example", "told"),
    [
        ("photo.jpg", "'photo.jpg'"),
        ("ab", "'ab'"),
        ({"image": 1, "label": 2}, "{'image'"),
        (3, "3"),
        (bytes(1000), "b'"),
    ],
)
def test_what_is_no_pair_of_image_and_label_is_named(example: Any, told: str) -> None:
    with pytest.raises(TypeError, match=rf"\(image, label\).*not {told}.{{,40}}$"):
        taught(range(3)).learn_many([example])


@pytest.mark.parametrize("labels", [[["cat", "dog"]] * 2, "cat", [["cat"]]])
def test_a_table_is_no_list_of_labels(labels: Any) -> None:
    """Of a data frame the names of its columns would be asked about."""
    classifier = taught(range(3))
    for _ in range(2):  # asked again, too
        with pytest.raises(LabelError, match="not as ndarray"):
            classifier.predict(picture(5), np.array(labels))


def test_keys_and_sources_are_text(tmp_path: Path) -> None:
    classifier = taught(range(3))
    with pytest.raises(TypeError, match="A key is text, not int: 7"):
        classifier.learn_many([(picture(5), "cat", 7)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"A source is text, not .*Path"):
        classifier.learn_one(picture(5), "cat", source=tmp_path)  # type: ignore[arg-type]
    assert len(classifier) == 3


def test_an_example_is_named_by_its_number() -> None:
    classifier = taught(range(3))
    for call in (
        lambda wrong: classifier.forget(example_id=wrong),
        lambda wrong: classifier.relabel(wrong, "cat"),
        classifier.thumbnail,
    ):
        for wrong in ("1", [1, 2], 1.0):
            with pytest.raises(TypeError, match="named by its number"):
                call(wrong)
    for unknown in (0, -1, 2**70):
        with pytest.raises(StoreError, match="no example"):
            classifier.forget(example_id=unknown)
    number: Any = np.int64(2)  # as a table of examples has them
    assert classifier.relabel(number, "new").label == "new"
    assert classifier.forget(example_id=number) == 1


def test_tokens_of_another_shape_are_refused() -> None:
    classifier = taught(range(3))
    tokens = classifier.encode(picture(5))  # one image, as `predict` takes it
    assert torch.equal(tokens, classifier.encode([picture(5)]))
    for wrong in (tokens[0], tokens[:, 1:], tokens.numpy()):
        with pytest.raises(ModelError, match=r"tensor \[image, 17, 32\]"):
            classifier.predict_tokens(wrong)
        with pytest.raises(ModelError, match=r"tensor \[image, 17, 32\]"):
            classifier.opinions(wrong, LABELS)
    for wrong in (tokens, tokens[0, 1:], tokens[0].numpy(), tokens[0].tolist()):
        with pytest.raises(ModelError, match="okens"):
            classifier.learn_tokens(wrong, "cat")
    assert len(classifier) == 3


def test_examples_come_as_the_rows_of_a_table(tmp_path: Path) -> None:
    """As `frame.to_numpy()` gives them."""
    picture(5).save(tmp_path / "a.png")
    rows: Any = np.array([[str(tmp_path / "a.png"), "cat"]], dtype=object)
    assert taught(range(3)).learn_many(rows) == 1


def test_settings_are_settings() -> None:
    with pytest.raises(TypeError, match="Settings"):
        AnytimeClassifier.open(model=measured(), settings={})  # type: ignore[arg-type]


def test_a_memory_keeps_the_prior_it_began_with(tmp_path: Path) -> None:
    """Another one would give other answers."""
    with opened(tmp_path / "m", model=measured(), settings=settings()) as classifier:
        classifier.learn_many(lessons(20))
        told = classifier.predict([picture(50), picture(51)], LABELS)
        classifier.save_pretrained(tmp_path / "saved")
        after = knowledge(classifier)
    for folder in ("m", "saved"):
        for backbone in (model(), measured()):
            with opened(tmp_path / folder, model=backbone, read_only=True) as again:
                assert differing(after, knowledge(again)) == []
                assert again.predict([picture(50), picture(51)], LABELS) == told
    with opened(tmp_path / "plain", settings=settings()) as classifier:
        classifier.learn_many(lessons(20))
        assert classifier.predict([picture(50), picture(51)], LABELS) != told


@pytest.mark.parametrize("backbone", [model(), measured()])
def test_one_image_may_be_taught_again_and_again(backbone: Any) -> None:
    """It has no spread, and yet it is learned from and answered."""
    classifier = taught([], model=backbone)
    for _ in range(20):
        classifier.learn_one(picture(0), "cat")
    assert classifier.predict(picture(0), LABELS).label == "cat"
    assert np.isfinite(classifier.predict_proba(picture(1), LABELS)).all()


# Learning


def test_learning_many_is_learning_one_by_one() -> None:
    one, many = taught(range(25)), AnytimeClassifier.open(model=model(), settings=settings())
    reported: list[Any] = []
    assert many.learn_many(lessons(12)) == 12
    assert many.learn_many(iter(lessons(13, start=12)), report=reported.append) == 13
    assert differing(knowledge(one), knowledge(many)) == []
    assert [learned.id for learned in reported] == list(range(13, 26))
    assert many.learn_many([]) == 0


def test_learning_many_takes_keys() -> None:
    keyed = [(*lesson(number % 7), f"key {number % 7}") for number in range(12)]
    many, one, told = taught([]), taught([]), []
    assert many.learn_many([*keyed, lesson(12)], report=told.append) == 13
    expected = [one.learn_one(image, label, key=key) for image, label, key in keyed]
    expected.append(one.learn_one(*lesson(12)))
    assert told == expected
    assert len(many) == 8
    assert differing(knowledge(one), knowledge(many)) == []


def test_a_key_with_other_content_is_an_error(tmp_path: Path) -> None:
    classifier, told = taught([]), []
    first = classifier.learn_one(picture(0), "cat", key="upload 1")
    with pytest.raises(KeyUsedError, match="example 1, and comes again with another image"):
        classifier.learn_one(picture(1), "cat", key="upload 1")
    with pytest.raises(KeyUsedError, match="as 'cat', and comes again with the label 'dog'"):
        classifier.learn_one(picture(0), "dog", key="upload 1")
    assert classifier.learn_many([(picture(1), "cat", "upload 1")], report=told.append) == 0
    assert isinstance(told[0], KeyUsedError)
    classifier.relabel(first.id, "dog")
    for label in ("cat", "dog"):  # a retry is harmless, whatever was corrected since
        assert classifier.learn_one(picture(0), label, key="upload 1").id == first.id
    record = classifier.memory.read([first.id])[0]
    model_of = classifier.backbone.spec.fingerprint
    again = classifier.learn_compressed(record, "dog", fingerprint=model_of, key="upload 1")
    assert again.id == first.id
    assert len(classifier) == 1


def test_a_file_whose_key_is_known_is_not_even_read(tmp_path: Path) -> None:
    classifier, file = taught([]), tmp_path / "0.png"
    picture(0).save(file)
    assert classifier.learn_many([(file, "cat", "0")]) == 1
    file.unlink()
    assert classifier.learn_many([(file, "cat", "0")]) == 1
    assert len(classifier) == 1


def test_stored_images_teach_what_their_tokens_teach(tmp_path: Path) -> None:
    """The trunk sees each image alone, whenever it is practised."""
    plain = taught(range(15))
    with opened(tmp_path, settings=settings(codec="image")) as classifier:
        classifier.learn_many(lessons(10))
        classifier.consolidate(1)
    plain = taught(range(10))
    plain.consolidate(1)
    (tmp_path / "checkpoint").rename(tmp_path / "away")
    with opened(tmp_path) as classifier:
        classifier.learn_many(lessons(5, start=10))
        plain.learn_many(lessons(5, start=10))
        assert changed(knowledge(plain)["tensors"], knowledge(classifier)["tensors"]) == []
        tokens = classifier.encode([picture(1)])[0]
        with pytest.raises(ModelError, match="image itself"):
            classifier.learn_tokens(tokens, "cat")
        assert len(classifier) == 15


def test_an_image_is_stored_as_it_came(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    picture(0).save(file, quality=30)
    data = file.read_bytes()
    classifier = taught([], settings=settings(codec="image"))
    codec = ImageBytes()
    for source in (str(file), file, data, bytearray(data), io.BytesIO(data)):
        record = classifier.memory.example(classifier.learn_one(source, "cat").id).record
        assert codec.images([record]) == [data]
    for source in (picture(0), np.asarray(picture(0)), {"image": picture(0)}):
        record = classifier.memory.example(classifier.learn_one(source, "cat").id).record
        [stored] = codec.images([record])
        assert np.array_equal(np.asarray(load_image(stored)), np.asarray(picture(0)))
    with pytest.raises(ImageError, match="no such file"):
        classifier.learn_one(tmp_path / "missing.jpg", "cat")
    assert len(classifier) == 2  # images, however they came


def test_the_same_stream_and_seed_give_the_same_model_and_another_seed_another() -> None:
    first, again = taught(range(25)), taught(range(25))
    assert differing(knowledge(first), knowledge(again)) == []
    for other in (taught(range(25), settings=settings(seed=1)), taught([1, 0, *range(2, 25)])):
        differ = differing(knowledge(first), knowledge(other))
        assert any(name.startswith("weights.") for name in differ)


def test_learning_helps() -> None:
    """Two pictures with odd names are told apart after some lessons."""
    classifier = taught([])
    images = {"golden retriever": picture(0), "great white shark": picture(1)}
    for number in range(40):
        for label, image in images.items():
            again = image.copy()
            again.putpixel((number % 34, 0), (number, number, number))
            classifier.learn_one(image if not number else again, label)
    for label, image in images.items():
        found = classifier.predict(image, list(images))
        assert found.label == label
        assert found.tuned[label] > 0.9
        assert found.spoke == "instance"  # it is one of those that were taught


def test_a_key_teaches_once(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        first = classifier.learn_one(*lesson(0), key="a")
        second = classifier.learn_one(*lesson(1), key="b")
        before = knowledge(classifier)
        assert classifier.learn_one(*lesson(0), key="a").id == first.id
        assert classifier.learn_one(*lesson(1), key="b").id == second.id
        assert differing(before, knowledge(classifier)) == []
    with opened(tmp_path) as classifier:
        assert classifier.learn_one(*lesson(0), key="a").id == first.id
        assert differing(before, knowledge(classifier)) == []
        classifier.forget(example_id=first.id)
        assert classifier.learn_one(*lesson(0), key="a").id > second.id
        assert len(classifier) == 2


def wrong_lessons(folder: Path) -> dict[str, tuple[type[AnytimeError], Any, Any, Any]]:
    cut = io.BytesIO()
    picture(0).save(cut, "PNG")
    return {
        "no such file": (ImageError, folder / "missing.png", "cat", None),
        "not an image": (ImageError, b"not an image at all", "cat", None),
        "cut short": (ImageError, cut.getvalue()[:200], "cat", None),
        "no label": (LabelError, picture(0), "  ", None),
        "no text": (LabelError, picture(0), 7, None),
        "control characters": (LabelError, picture(0), "a\x00b", None),
        "not among its candidates": (LabelError, picture(0), "cat", ["dog"]),
        "no candidates": (LabelError, picture(0), "cat", []),
        "a text for candidates": (LabelError, picture(0), "cat", "cat"),
        "a bad candidate": (LabelError, picture(0), "cat", ["cat", ""]),
        "a candidate that is no label": (LabelError, picture(0), "cat", ["cat", "None of these"]),
    }


@pytest.mark.parametrize("case", wrong_lessons(Path()))
def test_a_lesson_that_cannot_be_learned_stores_nothing(case: str, tmp_path: Path) -> None:
    error, image, label, candidates = wrong_lessons(tmp_path)[case]
    classifier = taught(range(5))
    before = knowledge(classifier)
    with pytest.raises(error):
        classifier.learn_one(image, label, candidates=candidates)
    assert differing(before, knowledge(classifier)) == []
    if candidates is None:
        reported: list[Any] = []
        assert classifier.learn_many([(image, label), lesson(5)], report=reported.append) == 1
        assert isinstance(reported[0], error)
        assert isinstance(reported[1], Learned)
        assert differing(knowledge(classifier), knowledge(taught(range(6)))) == []


def test_what_the_text_side_refuses_is_not_stored(tmp_path: Path) -> None:
    """Stored all the same, it could never be taught, and the memory never be opened again."""

    def text(texts: Any) -> torch.Tensor:
        if any("unspeakable" in each for each in texts):
            raise ModelError("This cannot be said.")
        assert model().text is not None
        return model().text(texts)

    backbone = dataclasses.replace(model(), text=text, label_cache=LabelCache())
    with opened(tmp_path, model=backbone, settings=settings()) as classifier:
        classifier.learn_one(*lesson(0))
        before = knowledge(classifier)
        with pytest.raises(ModelError, match="cannot be said"):
            classifier.learn_one(picture(1), "unspeakable")
        with pytest.raises(ModelError, match="cannot be said"):
            classifier.learn_one(picture(1), "cat", candidates=["cat", "unspeakable thing"])
        assert differing(before, knowledge(classifier)) == []
    with opened(tmp_path, model=backbone) as classifier:
        assert len(classifier) == 1


def test_many_stop_at_the_first_bad_one_and_keep_all_before() -> None:
    classifier = AnytimeClassifier.open(model=model(), settings=settings())
    with pytest.raises(ImageError):
        classifier.learn_many([*lessons(5), (b"no image", "cat"), *lessons(3, start=5)])
    assert differing(knowledge(classifier), knowledge(taught(range(5)))) == []


def test_many_that_break_off_leave_all_they_gave() -> None:
    def breaking() -> Iterator[tuple[PIL.Image.Image, str]]:
        yield from lessons(5)
        raise ConnectionError("the camera is gone")

    classifier = AnytimeClassifier.open(model=model(), settings=settings())
    with pytest.raises(ConnectionError, match="camera"):
        classifier.learn_many(breaking())
    assert differing(knowledge(classifier), knowledge(taught(range(5)))) == []


def test_candidates_change_what_is_learned() -> None:
    def learned(candidates: list[str] | None) -> dict[str, Any]:
        classifier = taught(range(6))
        classifier.learn_one(picture(9), "dog", candidates=candidates)
        return knowledge(classifier)

    everything, aloud = learned(None), learned(taught(range(6)).labels)
    few = learned(["dog", "cat"])
    for name, value in everything["tensors"].items():  # all that were seen, said aloud
        torch.testing.assert_close(value, aloud["tensors"][name], rtol=0, atol=1e-5)
    # The gradient's own size: a step of Adam's is nearly as long whatever it was.
    gradient = "first.other"
    assert not torch.allclose(few["tensors"][gradient], everything["tensors"][gradient])


def test_candidates_never_seen_stay_unseen() -> None:
    classifier = taught([])
    classifier.learn_one(picture(0), "dog", candidates=["dog", *NOVEL])
    assert classifier.labels == ["dog"]
    before = taught([]).predict(picture(1), NOVEL)
    assert classifier.predict(picture(1), NOVEL) == before


def interrupt(*_: Any, **__: Any) -> Any:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", [(OnlineLearner, "look_ahead"), (Estimates, "add")])
@pytest.mark.parametrize("folder", [True, False])
def test_an_interrupted_lesson_is_made_up_for(
    where: tuple[type, str], folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after storing, or in the middle of the change: the journal has what is missing."""
    classifier = AnytimeClassifier.open(
        tmp_path if folder else None, model=model(), settings=settings()
    )
    classifier.learn_many(lessons(8))
    with monkeypatch.context() as patch:
        patch.setattr(*where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            classifier.learn_one(*lesson(8))
    assert len(classifier) == 9
    classifier.learn_one(*lesson(9))
    assert differing(knowledge(classifier), knowledge(taught(range(10)))) == []
    classifier.close()


def test_half_a_change_is_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(8))
    with opened(tmp_path) as classifier:
        classifier.learn_one(*lesson(8))
        with monkeypatch.context() as patch:
            patch.setattr(Estimates, "add", interrupt)  # the weights have changed already
            with pytest.raises(KeyboardInterrupt):
                classifier.learn_one(*lesson(9))
    with opened(tmp_path) as classifier:
        assert differing(knowledge(classifier), knowledge(taught(range(10)))) == []


def test_a_consolidation_that_is_interrupted_never_was(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(20))
        before = knowledge(classifier)
        answers = classifier.predict([picture(50), picture(51)])

        def stop(done: int, total: int) -> None:
            assert classifier.predict([picture(50), picture(51)]) == answers  # it may be asked
            if done == total:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            classifier.consolidate(2, progress=stop)
        assert differing(before, knowledge(classifier)) == []
        assert classifier.memory.last == 20
    for read_only in (True, False):
        with opened(tmp_path, read_only=read_only) as classifier:
            assert differing(before, knowledge(classifier)) == []
    with opened(tmp_path) as classifier:
        classifier.consolidate(2)
        straight = taught(range(20))
        straight.consolidate(2)
        assert differing(knowledge(straight), knowledge(classifier)) == []


def test_a_consolidation_that_cannot_be_noted_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""
    classifier = taught(range(12))
    before = knowledge(classifier)

    def full(*_: Any) -> int:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(classifier.memory, "record_event", full)
        with pytest.raises(StoreError, match="full"):
            classifier.consolidate(2)
    assert differing(before, knowledge(classifier)) == []
    classifier.consolidate(2)
    assert differing(before, knowledge(classifier)) != []


def test_a_consolidation_that_was_noted_but_not_taken_over_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = taught(range(20))
    straight.consolidate(2)
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(20))
        keep, calls = OnlineLearner.restore, []

        def restore(self: OnlineLearner, state: Any) -> None:
            calls.append(self)
            if len(calls) == 2:  # the first makes the copy to work on
                raise KeyboardInterrupt
            keep(self, state)

        with monkeypatch.context() as patch:
            patch.setattr(OnlineLearner, "restore", restore)
            with pytest.raises(KeyboardInterrupt):
                classifier.consolidate(2)
        assert classifier.memory.last == 21
    with opened(tmp_path) as classifier:
        assert differing(knowledge(straight), knowledge(classifier)) == []


def test_a_checkpoint_ahead_of_its_journal_tells_what_was_lost(tmp_path: Path) -> None:
    """As after a power cut that took the end of the log: its numbers are not used again."""
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(8))
        backup(classifier.memory, tmp_path / "copy")
        classifier.learn_many(lessons(4, start=8))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy" / "checkpoint")
    for read_only in (True, False):
        with pytest.warns(StoreWarning, match="lost its events 9 to 12"):
            classifier = opened(tmp_path / "copy", read_only=read_only)
        assert len(classifier) == 8
        if not read_only:
            assert classifier.learn_one(*lesson(8)).id == 14  # 13 tells of the loss
        classifier.close()
    with opened(tmp_path / "copy") as classifier:
        assert len(classifier) == 9


@pytest.mark.parametrize("epochs", [0, -1, 1.5, "2", None])
def test_consolidation_takes_a_whole_number_of_epochs(epochs: Any) -> None:
    classifier = taught(range(4))
    before = knowledge(classifier)
    with pytest.raises(ValueError, match="epochs"):
        classifier.consolidate(epochs)
    assert differing(before, knowledge(classifier)) == []
    assert classifier.memory.last == before["event"]


def test_stats_tell_counts_accuracies_and_weights() -> None:
    classifier = taught(range(25))
    stats = classifier.stats()
    assert {label: each.examples for label, each in stats.items()} == classifier.memory.labels()
    for label, each in stats.items():
        record = classifier._trainer.model.estimates.of(label)
        assert (each.tuned, each.original) == (record.tuned, record.original)
        assert 0 <= each.weight <= 1
    assert sum(each.examples for each in stats.values()) == len(classifier) == 25
    assert taught([]).stats() == {}


# Forgetting


def experts(classifier: AnytimeClassifier) -> dict[str, torch.Tensor]:
    """Statistics of the images, which have nothing to do with what the weights did."""
    return classifier._trainer.model.gaussian.state()


def without(gone: set[int], count: int, forgotten_at: int) -> AnytimeClassifier:
    """One that never learned some of the lessons. Numbers seed batches, so it counts them along."""
    fresh = taught([])
    for event in range(1, count + 2):
        if event in gone or event == forgotten_at:
            fresh.memory.record_event("nothing", {})
        else:
            fresh.learn_one(*lesson(event - 1 if event < forgotten_at else event - 2))
    fresh._catch_up()
    return fresh


def test_what_came_after_the_last_checkpoint_is_forgotten_without_a_trace(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(6))
    with opened(tmp_path) as classifier:  # the checkpoint knows six lessons
        classifier.learn_many(lessons(6, start=6))
        old = classifier.forget(example_id=9)
        assert (old, old.clean) == (1, True)
        pure = without({9}, 12, forgotten_at=13)
        assert differing(knowledge(pure), knowledge(classifier)) == []
        assert classifier.predict(picture(1)) == pure.predict(picture(1))


def test_an_older_example_leaves_its_trace_in_the_weights_and_this_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(6))
    with opened(tmp_path) as classifier:
        classifier.learn_many(lessons(6, start=6))
        shutil.copytree(tmp_path, tmp_path / "crashed")  # just after the example was removed
        with open_memory(tmp_path / "crashed") as memory:
            memory.forget([4])
        old = classifier.forget(example_id=4)
        assert (old, old.clean) == (1, False)
        living, pure = knowledge(classifier), without({4}, 12, forgotten_at=13)
        assert changed(living["tensors"], knowledge(pure)["tensors"]) != []
        assert changed(experts(pure), experts(classifier)) == []
        assert all(seen.example != 4 for seen in classifier._trainer.model.evidence)
        with opened(tmp_path / "crashed") as recovered:
            assert differing(living, knowledge(recovered)) == []
        classifier.rebuild()
        assert differing(knowledge(pure), knowledge(classifier)) == []


def test_in_ram_a_trace_stays_until_it_is_rebuilt() -> None:
    classifier = taught(range(12))
    weights = {n: value.clone() for n, value in classifier._trainer.learner.state().items()}
    assert not classifier.forget(example_id=9).clean
    assert changed(weights, classifier._trainer.learner.state()) == []
    pure = without({9}, 12, forgotten_at=13)
    assert changed(experts(pure), experts(classifier)) == []  # there it is gone at once
    classifier.rebuild()
    assert differing(knowledge(pure), knowledge(classifier)) == []


def test_a_forgetting_that_is_interrupted_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(12))
        with monkeypatch.context() as patch:
            patch.setattr(OnlineLearner, "look_ahead", interrupt)
            with pytest.raises(KeyboardInterrupt):
                classifier.forget(example_id=9)
        assert len(classifier) == 11
        classifier.learn_one(*lesson(12))
        pure = without({9}, 12, forgotten_at=13)
        pure.learn_one(*lesson(12))
        assert differing(knowledge(pure), knowledge(classifier)) == []


def test_forgetting_an_example(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(10))
        assert classifier.forget(example_id=4) == 1
        assert len(classifier) == 9
        assert 4 not in dict(classifier.memory.ids())
        with pytest.raises(StoreError, match="4"):
            classifier.forget(example_id=4)
        with pytest.raises(StoreError, match="99"):
            classifier.forget(example_id=99)
        classifier.learn_one(*lesson(10))
        after = knowledge(classifier)
    with opened(tmp_path) as classifier:
        assert differing(after, knowledge(classifier)) == []
        with pytest.raises(StoreError, match="4"):
            classifier.forget(example_id=4)


def test_forgetting_a_label_leaves_no_trace_of_its_text(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(10))
        classifier.learn_one(picture(20), "secret garden")
        classifier.learn_one(picture(21), "secret garden")
        classifier.learn_many(lessons(5, start=10))
        assert classifier.forget(label=" secret  garden") == 2
        assert "secret garden" not in classifier.labels
        assert "secret garden" not in classifier.stats()
        classifier.learn_many(lessons(5, start=15))
        before = knowledge(classifier)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes(), path
    with opened(tmp_path) as classifier:
        assert differing(before, knowledge(classifier)) == []


def test_forgetting_what_was_never_there() -> None:
    classifier = taught(range(5))
    before = knowledge(classifier)
    assert classifier.forget(label="unheard of") == 0
    for wrong in ({}, {"example_id": 1, "label": "cat"}):
        with pytest.raises(LabelError, match="what to forget"):
            classifier.forget(**wrong)
    with pytest.raises(LabelError):
        classifier.forget(label="")
    assert differing(before, knowledge(classifier)) == []
    assert classifier.memory.last == 5


def test_everything_can_be_forgotten() -> None:
    classifier = taught(range(12))
    for label in classifier.labels:
        classifier.forget(label=label)
    assert len(classifier) == 0
    assert classifier.labels == []
    answer, zero = (each.predict(picture(1), LABELS) for each in (classifier, taught([])))
    assert answer == zero
    classifier.learn_one(*lesson(0))
    assert len(classifier) == 1


def test_a_rebuilt_classifier_never_saw_what_was_forgotten() -> None:
    """An example's number seeds its batch, so the fresh one counts the gaps along."""
    classifier = taught(range(8))
    classifier.consolidate(1)  # event 9
    classifier.learn_one(picture(30), "golden retriever")  # 10
    for number in range(8, 12):
        classifier.learn_one(*lesson(number))  # 11 to 14
    classifier.forget(example_id=3)  # 15
    classifier.forget(label="golden retriever")  # 16
    classifier.learn_one(*lesson(12))  # 17
    classifier.rebuild()

    fresh = AnytimeClassifier.open(model=model(), settings=settings())
    for event in range(1, 18):
        if event in (3, 10, 15, 16):
            fresh.memory.record_event("nothing", {})
        elif event == 9:
            fresh.consolidate(1)
        else:
            number = event - 1 if event < 9 else event - 3 if event < 15 else 12
            learned = fresh.learn_one(*lesson(number))
            assert learned.id == event
    assert differing(knowledge(fresh), knowledge(classifier)) == []


# Saving


@pytest.mark.parametrize("codec", USABLE)
def test_saved_and_loaded_it_goes_on_exactly(codec: str, tmp_path: Path) -> None:
    classifier = taught(range(15), settings=settings(codec=codec, seed=3, eta=0.9))
    classifier.consolidate(1)
    classifier.forget(example_id=2)
    classifier.save_pretrained(tmp_path / "saved")
    before, labels = knowledge(classifier), [*LABELS, *NOVEL]
    answers = classifier.predict([picture(50), picture(51)], labels)
    with AnytimeClassifier.from_pretrained(tmp_path / "saved", model=model()) as again:
        assert differing(before, knowledge(again)) == []
        assert again.predict([picture(50), picture(51)], labels) == answers
        assert again.settings == classifier.settings
        for each in (classifier, again):
            each.learn_many(lessons(5, start=15))
        assert differing(knowledge(classifier), knowledge(again)) == []


def test_what_is_saved_is_loaded_without_learning_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(range(15)).save_pretrained(tmp_path / "saved")

    def never(*_: Any) -> None:
        raise AssertionError("it learned again")

    monkeypatch.setattr(OnlineLearner, "look_ahead", never)
    with AnytimeClassifier.from_pretrained(tmp_path / "saved", model=model()) as again:
        assert len(again) == 15


def test_saving_and_loading_refuse_the_wrong_folder(tmp_path: Path) -> None:
    classifier = taught(range(3))
    classifier.save_pretrained(tmp_path / "saved")
    with pytest.raises(StoreError, match="not empty"):
        classifier.save_pretrained(tmp_path / "saved")
    (tmp_path / "empty").mkdir()
    for folder in ("missing", "empty"):
        with pytest.raises(StoreError, match="no saved classifier"):
            AnytimeClassifier.from_pretrained(tmp_path / folder, model=model())
    assert not (tmp_path / "missing").exists()
    assert list((tmp_path / "empty").iterdir()) == []
    classifier.save_pretrained(tmp_path / "empty")
    classifier.close()
    with pytest.raises(StoreError, match="closed"):
        classifier.save_pretrained(tmp_path / "late")


def test_closed_and_opened_it_goes_on_exactly(tmp_path: Path) -> None:
    straight = taught(range(20))
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(10))
    with opened(tmp_path) as classifier:
        assert classifier.settings == settings()
        classifier.learn_many(lessons(10, start=10))
        assert differing(knowledge(straight), knowledge(classifier)) == []
    classifier.close()
    with pytest.raises(StoreError, match="closed"):
        classifier.learn_one(*lesson(0))
    assert classifier.predict(picture(0), LABELS).label in LABELS  # weights need no file


def test_a_program_that_changes_its_folder_keeps_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint in another folder of that name would be another memory's."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with opened(Path("memory"), settings=settings()) as classifier:
        classifier.learn_many(lessons(3))
        monkeypatch.chdir(tmp_path / "there")
        with opened(Path("memory"), settings=settings()) as other:
            other.learn_one(*lesson(9))
        backup(classifier.memory, Path("copy"))
    with opened(Path("memory")) as other:
        assert len(other) == 1
    assert len(list((tmp_path / "here/memory/checkpoint").iterdir())) > 0
    with opened(Path("copy")) as copy:
        assert len(copy) == 3


def test_what_takes_the_place_of_a_memory_in_use_keeps_its_own_checkpoint(tmp_path: Path) -> None:
    """A backup, say, as somebody brought it back before the program ended."""
    place, elsewhere = tmp_path / "memory", tmp_path / "elsewhere"
    with opened(place, settings=settings()) as classifier:
        classifier.learn_many(lessons(3))
        classifier.save_pretrained(tmp_path / "backup")
        with opened(tmp_path / "backup", settings=settings()) as again:
            before = knowledge(again)
        place.rename(elsewhere)
        shutil.copytree(tmp_path / "backup", place)
        classifier.learn_many(lessons(9, 3))  # it lasts where it is now
        with pytest.warns(StoreWarning, match="moved or removed while it was in use"):
            classifier.forget(example_id=7)
        classifier.learn_many(lessons(3, 12))
        after = knowledge(classifier)
        with pytest.warns(StoreWarning, match="moved or removed while it was in use"):
            classifier.close()
    for folder, known in ((place, before), (elsewhere, after)):
        with opened(folder, settings=settings()) as again:
            assert differing(known, knowledge(again)) == []


def test_without_its_checkpoint_a_memory_is_learned_again(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_many(lessons(12))
        before = knowledge(classifier)
    for path in (tmp_path / "checkpoint").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="Delete it"):
        opened(tmp_path)
    (tmp_path / "checkpoint").rmdir()
    with opened(tmp_path) as classifier:
        assert differing(before, knowledge(classifier)) == []


def test_checkpoints_are_written_as_it_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "CHECKPOINT_EVERY", 4)
    classifier = opened(tmp_path, settings=settings())
    events = []
    for number in range(13):
        classifier.learn_one(*lesson(number))
        classifier._checkpointer.settle()
        saved = checkpoints.load_beside_owner(tmp_path / "checkpoint")
        events.append(saved.event if saved else 0)
    assert events == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12]
    classifier.close()
    saved = checkpoints.load(tmp_path / "checkpoint")
    assert saved is not None
    assert saved.event == 13


def test_a_checkpoint_that_fails_beside_learning_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "CHECKPOINT_EVERY", 4)
    keep, full = checkpoints.save, True

    def save(*args: Any) -> None:
        if full:
            raise CheckpointError("The disk is full.")
        keep(*args)

    monkeypatch.setattr(checkpoints, "save", save)
    classifier = opened(tmp_path, settings=settings())
    for number in range(7):  # the fourth begins one, whose end nobody waits for
        classifier.learn_one(*lesson(number))
    with pytest.warns(StoreWarning, match="disk is full"):
        assert classifier.learn_one(*lesson(7)).id == 8
    with (
        pytest.warns(StoreWarning, match="^The disk is full"),  # of the eighth
        pytest.warns(StoreWarning, match="forgotten, but the last checkpoint"),
    ):
        assert classifier.forget(example_id=2).clean  # there is no checkpoint at all yet
    full = False
    for number in range(8, 12):
        classifier.learn_one(*lesson(number))
    before = knowledge(classifier)
    classifier.close()
    with opened(tmp_path) as again:
        assert differing(before, knowledge(again)) == []


def test_closing_tries_a_failed_checkpoint_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "CHECKPOINT_EVERY", 4)
    keep = checkpoints.save
    calls: list[Callable[..., None]] = []

    def save(*args: Any) -> None:
        calls.append(keep)
        if len(calls) == 1:
            raise CheckpointError("The disk is full.")
        keep(*args)

    monkeypatch.setattr(checkpoints, "save", save)
    classifier = opened(tmp_path, settings=settings())
    classifier.learn_many(lessons(4))
    with pytest.warns(StoreWarning, match="disk is full"):
        classifier.close()
    saved = checkpoints.load(tmp_path / "checkpoint")
    assert saved is not None
    assert saved.event == 4


# Opening


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_a_reader_beside_the_owner_predicts_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as owner:
        owner.learn_many(lessons(6))
        owner.forget(example_id=6)  # which writes a checkpoint
        owner.learn_many(lessons(4, start=6))
        before = files(tmp_path)
        with opened(tmp_path, read_only=True) as reader:
            assert differing(knowledge(owner), knowledge(reader)) == []
            found = reader.predict(picture(9), [*LABELS, *NOVEL])
            assert found == owner.predict(picture(9), [*LABELS, *NOVEL])
            for refused in (
                lambda: reader.learn_one(*lesson(0)),
                lambda: reader.forget(example_id=1),
                lambda: reader.forget(label="cat"),
                lambda: reader.consolidate(1),
            ):
                with pytest.raises(StoreError, match="reading only"):
                    refused()
            reader.rebuild()
        assert files(tmp_path) == before
        owner.learn_one(*lesson(10))
    with pytest.raises(StoreError, match="no memory"):
        opened(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()


def test_two_owners_are_one_too_many(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()), pytest.raises(StoreError, match="in use"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_another_version_of_a_model_is_refused_by_that_word(tmp_path: Path) -> None:
    """It has the same name, so naming it would send people in a circle."""
    opened(tmp_path, settings=settings()).close()
    newer = dataclasses.replace(model(), spec=dataclasses.replace(model().spec, weights="newer"))
    with pytest.raises(StoreError, match="another version of the model 'tiny clip 0'") as raised:
        opened(tmp_path, model=newer)
    assert "Open it with that model" not in str(raised.value)


def test_another_model_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_one(*lesson(0))
    for other in (model(seed=1), model(blocks=2)):
        with pytest.raises(StoreError, match="tiny clip 0") as raised:
            opened(tmp_path, model=other)
        assert other.spec.name in str(raised.value)
    moved = dataclasses.replace(model().spec, name="the same model in another folder")
    with opened(tmp_path, model=dataclasses.replace(model(), spec=moved)) as classifier:
        assert len(classifier) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"codec": "tokens-fp16"},
        {"sampler": "fifo"},
        {"eta": 0.5},
        {"seed": 8},
        {"templates": ("a {}",)},
        {"learner": dataclasses.replace(FAST, batch=7)},
    ],
)
def test_other_settings_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings()) as classifier:
        classifier.learn_one(*lesson(0))
    with pytest.raises(StoreError, match=f"made with {next(iter(change))}="):
        opened(tmp_path, settings=settings(**change))
    with opened(tmp_path) as classifier:
        assert len(classifier) == 1


def test_the_blend_may_change_from_opening_to_opening(tmp_path: Path) -> None:
    with opened(tmp_path, settings=settings(blend="ocw")) as classifier:
        classifier.learn_many(lessons(12))
    for blend in BLENDS:
        with opened(tmp_path, settings=settings(blend=blend)) as classifier:
            found = classifier.predict(picture(3), LABELS)
            if blend in ("tuned", "original"):
                assert found.probabilities == getattr(found, blend)
    with opened(tmp_path) as classifier:
        assert classifier.settings.blend == "ocw"


@pytest.mark.parametrize(
    "wrong",
    [
        {"codec": "x"},
        {"sampler": "x"},
        {"blend": "x"},
        {"eta": 1.0},
        {"eta": "0.9"},
        {"learner": {"batch": 4}},
        {"templates": "a photo of {}"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        Settings(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"templates": ["a photo"]},
        {"sampler": {"name": "frequency_weighted", "options": {"xi": "0.9"}}},
        {"codec": {"name": "pca-image", "options": {"components": "8"}}},
    ],
)
def test_what_a_memory_could_never_be_opened_with_makes_none(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"holds \{\} once|cannot be made with"):
        opened(tmp_path / "m", settings=settings(**wrong))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("item", ["lr", "weight_decay", "beta", "scale"])
def test_what_unlearns_makes_no_memory_and_opens_an_old_one(
    item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(learner=dataclasses.replace(FAST, **{item: -1e-3}))
    with pytest.raises(ValueError, match=f"{item} is 0 or more"):
        opened(tmp_path / "m", settings=chosen)
    assert not (tmp_path / "m").exists()
    with monkeypatch.context() as before:
        before.setattr(opening, "check_makeable", lambda *_: None)
        opened(tmp_path / "m", settings=chosen).close()
    with opened(tmp_path / "m") as classifier:
        classifier.learn_one(*lesson(0))


@pytest.mark.parametrize("seed", [None, 1.5, "7"])
def test_a_seed_that_is_no_whole_number_makes_no_memory_and_opens_an_old_one(
    seed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="seed is a whole number, not"):
        opened(tmp_path / "m", settings=settings(seed=seed))
    assert not (tmp_path / "m").exists()
    with monkeypatch.context() as before:
        before.setattr(opening, "check_makeable", lambda *_: None)
        opened(tmp_path / "m", settings=settings(seed=seed)).close()
    with opened(tmp_path / "m") as classifier:
        classifier.learn_one(*lesson(0))
        assert classifier.settings.seed == seed


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    learner = dataclasses.replace(FAST, batch=np.int64(6), lr=np.float32(0.5))
    chosen = settings(seed=np.int64(3), learner=learner)
    assert Settings.from_json(chosen.to_json()) == chosen


def test_settings_survive_json() -> None:
    chosen = settings(templates=["a {}", "the {}"], seed=4, eta=0.5, sampler="fifo", blend="aim")
    assert chosen.templates == ("a {}", "the {}")
    assert Settings.from_json(chosen.to_json()) == chosen
    assert Settings.from_json(Settings().to_json()) == Settings()
    older = json.loads(chosen.to_json())
    for item in ("eager", "imprint"):  # which it did not know: it goes on as it began
        del older["learner"][item]
    learner = Settings.from_json(json.dumps(older)).learner
    assert learner == dataclasses.replace(chosen.learner, eager=0.0, imprint=0.0)
    for retired in ("recalled", "gated", "paired"):
        older["blend"] = retired
        assert Settings.from_json(json.dumps(older)).blend == "pool"
        with pytest.raises(ValueError, match=retired):  # nobody may ask for it anew
            settings(blend=retired)
    for text in ("{}", "[]", "nonsense", chosen.to_json().replace("fifo", "lifo")):
        with pytest.raises(StoreError, match="another version"):
            Settings.from_json(text)


def test_templates_shape_what_labels_mean(tmp_path: Path) -> None:
    plain = taught(range(4), settings=settings(templates=["{}"]))
    other = taught(range(4), settings=settings(templates=["a bad photo of {}"]))
    assert plain.predict(picture(3), NOVEL) != other.predict(picture(3), NOVEL)
    with opened(tmp_path, settings=settings(templates=["{}", "a {}"])):
        pass
    with opened(tmp_path, settings=settings(templates=["{}", "a {}"])):
        pass


@pytest.mark.parametrize("backbone", [model("siglip"), model(blocks=2)])
def test_a_codec_that_does_not_fit_the_model_leaves_no_memory_behind(
    backbone: Any, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="tokens-fp16"):
        opened(tmp_path / "m", model=backbone, settings=settings(codec="attention-pca"))
    with opened(tmp_path / "m", model=backbone, settings=settings()) as classifier:
        classifier.learn_many(lessons(6))
        before = knowledge(classifier)
    with opened(tmp_path / "m", model=backbone) as classifier:
        assert differing(before, knowledge(classifier)) == []
        assert classifier.predict(picture(0)).label in LABELS
