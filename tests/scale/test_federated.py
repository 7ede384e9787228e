"""An edge sends features and labels, as often as it must, and each teaches once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import helpers

from anytimecl.codec import make_codec
from anytimecl.errors import AnytimeError, LabelError, ModelError, StoreError
from anytimecl.scale import federated
from anytimecl.scale.federated import EdgeClient, Parcel, Receipt, Send, straight_to
from anytimecl.scale.tree import TreeClassifier

MODEL = helpers.model()
CODEC = make_codec("tokens-fp32", MODEL.spec, MODEL.tail)


def edge(folder: Path, send: Send) -> EdgeClient:
    return EdgeClient(folder, MODEL, CODEC, send, fingerprint=MODEL.spec.fingerprint)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[TreeClassifier]:
    settings = helpers.settings()
    with TreeClassifier.open(tmp_path / "tree", model=MODEL, settings=settings) as opened:
        yield opened


def test_the_edge_teaches_as_if_the_images_were_there(tmp_path: Path, tree: TreeClassifier) -> None:
    with edge(tmp_path / "edge", straight_to(tree)) as client:
        for number in range(20):
            client.add(*helpers.lesson(number))
        assert client.flush() == 20
        assert len(client) == 0
    with helpers.taught(range(20)) as single:
        expected = single.predict(helpers.picture(99), helpers.LABELS).probabilities
    asked = helpers.picture(99)
    assert tree.predict(asked, helpers.LABELS).probabilities == expected


def test_a_batch_that_is_cut_off_teaches_once(
    tmp_path: Path, tree: TreeClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federated, "BATCH", 4)
    through = straight_to(tree)
    failures = iter([0, 1, 0, 1, 1, 0, 0, 0, 0, 0])

    def flaky(batch: Sequence[Parcel]) -> Receipt:
        receipt = through(batch)  # it arrives and is learned; the answer is lost
        if next(failures):
            raise ConnectionError("the line went dead")
        return receipt

    client = edge(tmp_path / "edge", flaky)
    for number in range(12):
        client.add(*helpers.lesson(number), key=f"lesson {number}")
    for _ in range(4):
        try:
            client.flush()
        except ConnectionError:
            client.close()
            client = edge(tmp_path / "edge", flaky)  # and the edge restarts too
    assert (len(client), len(tree)) == (0, 12)
    client.close()


def test_nothing_but_features_label_and_key_leaves(tmp_path: Path) -> None:
    seen: list[Parcel] = []

    def keep(batch: Sequence[Parcel]) -> Receipt:
        seen.extend(batch)
        return Receipt([parcel.key for parcel in batch])

    photo = tmp_path / "secret name.png"
    helpers.picture(1).save(photo)
    with edge(tmp_path / "edge", keep) as client:
        client.add(photo, "cat")
        client.flush()
    (parcel,) = seen
    assert parcel.record == CODEC.encode(MODEL.encode([helpers.picture(1)])[0])
    assert "secret" not in parcel.to_json()
    assert Parcel.from_json(parcel.to_json()) == parcel


def test_what_is_refused_stays_and_does_not_block(tmp_path: Path, tree: TreeClassifier) -> None:
    through = straight_to(tree)

    def damaging(batch: Sequence[Parcel]) -> Receipt:
        return through([p._replace(record=b"x") if p.key == "bad" else p for p in batch])

    client = edge(tmp_path / "edge", damaging)
    client.add(*helpers.lesson(0), key="bad")
    client.add(*helpers.lesson(1), key="good")
    assert client.flush() == 1
    assert [one.key for one in client.refused()] == ["bad"]
    assert len(tree) == 1
    client.drop(["bad"])
    assert client.refused() == []
    client.close()


def test_what_a_parcel_is_not_to_blame_for_is_sent_again(
    tmp_path: Path, tree: TreeClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = edge(tmp_path / "edge", straight_to(tree))
    for number in range(4):
        client.add(*helpers.lesson(number), key=f"lesson {number}")
    whole, count = tree.submit, []

    def filling_up(*given: Any, **options: Any) -> Any:
        count.append(given)
        if len(count) > 2:
            raise StoreError("The disk is full.")
        return whole(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(tree, "submit", filling_up)
        with pytest.raises(StoreError, match="full"):
            client.flush()
    assert (len(client), len(tree), client.refused()) == (2, 2, [])
    assert client.flush() == 2
    client.close()


def test_a_key_that_has_taught_something_else_does_not_block(
    tmp_path: Path, tree: TreeClassifier
) -> None:
    tree.learn_one(*helpers.lesson(9), key="lesson 0")
    client = edge(tmp_path / "edge", straight_to(tree))
    for number in range(2):
        client.add(*helpers.lesson(number), key=f"lesson {number}")
    assert client.flush() == 1
    assert [one.key for one in client.refused()] == ["lesson 0"]
    client.close()


def test_a_key_is_kept_once_and_silence_is_an_error(tmp_path: Path) -> None:
    client = edge(tmp_path / "edge", lambda batch: Receipt([]))
    client.add(*helpers.lesson(0), key="a")
    client.add(*helpers.lesson(0), key="a")
    assert len(client) == 1
    with pytest.raises(AnytimeError, match="They are kept"):
        client.flush()
    assert len(client) == 1
    client.close()


def test_an_outbox_that_cannot_be_used_says_so(tmp_path: Path, tree: TreeClassifier) -> None:
    client = edge(tmp_path / "edge", straight_to(tree))
    with pytest.raises(LabelError, match="cannot be taught"):
        client.add(helpers.picture(0), "none of these")
    with pytest.raises(TypeError, match="A key is text"):
        client.add(helpers.picture(0), "cat", key=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"write \['a key'\]"):
        client.drop("a key")
    client.close()
    with pytest.raises(StoreError, match=r"outbox in .* closed.*open it again"):
        client.add(helpers.picture(0), "cat")
    (tmp_path / "edge" / "outbox.sqlite3").write_bytes(b"damaged" * 999)
    with pytest.raises(StoreError, match=r"outbox in .* is not a database"):
        edge(tmp_path / "edge", straight_to(tree))


def test_refusals(tmp_path: Path) -> None:
    other = helpers.model(seed=1)
    with pytest.raises(ModelError, match="another model"):
        EdgeClient(
            tmp_path, MODEL, CODEC, lambda b: Receipt([]), fingerprint=other.spec.fingerprint
        )
    image = make_codec("image", MODEL.spec, MODEL.tail)
    with pytest.raises(ModelError, match="sends none"):
        EdgeClient(tmp_path, MODEL, image, lambda b: Receipt([]))
    for line in ("", "[]", '{"key": "k", "label": "cat", "record": "?"}'):
        with pytest.raises(StoreError, match="not a parcel"):
            Parcel.from_json(line)


def test_parcels_of_another_maker_are_not_mixed(tmp_path: Path) -> None:
    sent: list[Parcel] = []

    def keep(batch: Sequence[Parcel]) -> Receipt:
        sent.extend(batch)
        return Receipt([parcel.key for parcel in batch])

    with edge(tmp_path, keep) as client:
        client.add(*helpers.lesson(0), key="a")
    other = helpers.model(seed=1)
    for backbone, name in ((other, "tokens-fp32"), (MODEL, "tokens-fp16")):
        codec = make_codec(name, backbone.spec, backbone.tail)
        with pytest.raises(ModelError, match="still holds 1 parcels of another model or codec"):
            EdgeClient(tmp_path, backbone, codec, keep)
    with edge(tmp_path, keep) as client:  # nothing is lost, and the way out is one
        assert client.flush() == 1
    codec = make_codec("tokens-fp32", other.spec, other.tail)
    with EdgeClient(tmp_path, other, codec, keep) as client:
        client.add(*helpers.lesson(0), key="b")
    with pytest.raises(ModelError, match="another model or codec"):
        edge(tmp_path, keep)
    assert [parcel.key for parcel in sent] == ["a"]


def test_a_key_that_no_service_takes_is_told_at_once(tmp_path: Path) -> None:
    with edge(tmp_path, lambda batch: Receipt([])) as client:
        with pytest.raises(StoreError, match="at most 200"):
            client.add(*helpers.lesson(0), key="k" * 201)
        assert len(client) == 0
