"""Learning from records that were made elsewhere: the same model, and nothing that is not one."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import torch
from tests.helpers import differing, knowledge, lesson, lessons, model, settings, taught

from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import make_codec
from anytimecl.codec._record import pack
from anytimecl.errors import LabelError, StoreError
from anytimecl.recording import RecordError

MODEL = model()
FINGERPRINT = MODEL.spec.fingerprint
CODECS = ("attention-pca", "pca-image-cls-int8", "tokens-fp16", "tokens-fp32")


def record(number: int, codec: str) -> bytes:
    """What an edge makes of a picture."""
    tokens = MODEL.encode([lesson(number)[0]])[0]
    return make_codec(codec, MODEL.spec, MODEL.tail).encode(tokens)


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_teaches_what_its_image_teaches(codec: str, tmp_path: Path) -> None:
    chosen = settings(codec=codec)
    with AnytimeClassifier.open(tmp_path, model=MODEL, settings=chosen) as edge:
        for number, (_, label) in enumerate(lessons(12)):
            given = None if number % 3 else [label, "lynx"]
            sent = record(number, codec)
            edge.learn_compressed(sent, label, fingerprint=FINGERPRINT, candidates=given)
        alone = AnytimeClassifier.open(model=MODEL, settings=chosen)
        for number, (image, label) in enumerate(lessons(12)):
            alone.learn_one(image, label, candidates=None if number % 3 else [label, "lynx"])
        learned = knowledge(edge)
        assert differing(learned, knowledge(alone)) == []
        assert edge.memory.read([3]) == alone.memory.read([3])
        # Beside the owner, as another process would: nothing was closed or flushed for it.
        with AnytimeClassifier.open(tmp_path, model=MODEL, read_only=True) as reader:
            assert differing(learned, knowledge(reader)) == []


def test_a_key_teaches_once(tmp_path: Path) -> None:
    for _ in range(2):  # and after a restart too
        with AnytimeClassifier.open(tmp_path, model=MODEL, settings=settings()) as classifier:
            for number in (0, 1, 0):
                sent = record(number, "tokens-fp32")
                classifier.learn_compressed(sent, "cat", fingerprint=FINGERPRINT, key=f"{number}")
            assert len(classifier) == 2


def wrong_records() -> dict[str, tuple[str, bytes, str]]:
    good = record(0, "attention-pca")
    other = model(seed=1).spec.fingerprint
    flipped = bytearray(good)
    flipped[40] ^= 4
    wider = pack("attention-pca", MODEL.spec.tokens, 2 * MODEL.spec.tail.width, b"...")
    return {
        "of another model": ("another model", good, other),
        "of no model": ("another model", good, ""),
        "of another codec": ("codec tokens-fp16", record(0, "tokens-fp16"), FINGERPRINT),
        "of another shape": ("of width", wider, FINGERPRINT),
        "cut short": ("checksum", good[:-1], FINGERPRINT),
        "nothing": ("too few", b"", FINGERPRINT),
        "a bit flipped": ("checksum", bytes(flipped), FINGERPRINT),
        "text": ("checksum", b"this is no record at all", FINGERPRINT),
    }


@pytest.mark.parametrize("case", wrong_records())
def test_what_is_no_record_of_ours_stores_nothing(case: str) -> None:
    words, sent, fingerprint = wrong_records()[case]
    classifier = taught(range(5), settings=settings(codec="attention-pca"))
    before = knowledge(classifier)
    with pytest.raises(RecordError, match=words) as error:
        classifier.learn_compressed(sent, "cat", fingerprint=fingerprint)
    assert isinstance(error.value, StoreError)
    assert differing(before, knowledge(classifier)) == []


@pytest.mark.parametrize(("label", "candidates"), [("", None), ("cat", ["dog"])])
def test_labels_are_checked_as_ever(label: str, candidates: list[str] | None) -> None:
    classifier = taught([])
    sent = record(0, "tokens-fp32")
    with pytest.raises(LabelError):
        classifier.learn_compressed(sent, label, fingerprint=FINGERPRINT, candidates=candidates)
    assert len(classifier) == 0


def whole(body: bytes) -> bytes:
    """With a checksum that is right."""
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38, 1e20, 1e10])
@pytest.mark.parametrize("step", range(4))
def test_numbers_out_of_this_world_do_no_harm(step: int, value: float) -> None:
    """Such a record is refused, or at least leaves every weight a number."""
    classifier = taught(range(5), settings=settings(codec="attention-pca"))
    body = bytearray(record(0, "attention-pca")[:-4])
    struct.pack_into("<f", body, 7 + 4 * step, value)
    try:
        classifier.learn_compressed(whole(bytes(body)), "cat", fingerprint=FINGERPRINT)
    except RecordError:
        assert len(classifier) == 5
    else:
        assert value < 3e38
    classifier.learn_one(*lesson(6))
    tensors = classifier._trainer.learner.state()
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())


@pytest.mark.parametrize("codec", CODECS)
def test_rubbish_with_a_checksum_is_refused_in_words(codec: str) -> None:
    classifier = taught(range(3), settings=settings(codec=codec))
    noise = torch.Generator().manual_seed(0)
    good = record(0, codec)[:-4]
    refused = 0
    for _ in range(100):
        body = bytearray(good)
        for place in torch.randint(6, len(body), (3,), generator=noise).tolist():
            body[place] = int(torch.randint(0, 256, (1,), generator=noise))
        cut = int(torch.randint(6, len(body), (1,), generator=noise))
        for sent in (bytes(body), bytes(body[:cut])):
            try:
                classifier._check_record(whole(sent), FINGERPRINT)
            except RecordError:
                refused += 1
    assert refused >= 100  # whatever was cut, at the least
