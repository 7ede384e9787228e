"""Checks for custom components; each raises AssertionError with the violated property.

For use in any test runner:

    def test_my_sampler() -> None:
        check_sampler(MySampler)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import Backbone, Spec
from anytimecl.blend import Blend, LabelRecord, Opinions, unlearned
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import Codec
from anytimecl.errors import ModelError, StoreError
from anytimecl.experts import Expert
from anytimecl.memory import Row, Store
from anytimecl.sampling import Sampler
from anytimecl.settings import Settings
from anytimecl.tail import TailInput, embed, first, images_of

__all__ = [
    "check_backbone",
    "check_codec",
    "check_expert",
    "check_pool",
    "check_sampler",
    "check_store",
]

S = TypeVar("S", bound=Sampler)


def check_codec(codec: Codec, spec: Spec, tail: Mapping[str, Tensor]) -> None:
    """Check a codec: round trip, batch invariance, and rejection of damaged records.

    Parameters
    ----------
    codec
        For the model that `spec` and `tail` describe; not one that stores images.
    spec
        The model's description.
    tail
        The parameters of its tail.

    Raises
    ------
    AssertionError
        A property is violated.
    """
    shape = (spec.tokens, spec.tail.width)
    tokens = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    before = tokens.clone()
    records = [codec.encode(each) for each in tokens]
    _must(all(isinstance(record, bytes) for record in records), "encode gives bytes")
    _must(records == [codec.encode(each) for each in tokens], "encode gives the same again")
    _must(torch.equal(tokens, before), "encode leaves the tokens alone")

    def seen(some: Sequence[bytes]) -> Tensor:
        with torch.no_grad():
            return embed(tail, spec.tail, codec.decode(some))

    decoded = codec.decode(records)
    if not isinstance(decoded, TailInput):
        _must(decoded.shape == (3, *shape), f"decode gives [batch, token, width], here {shape}")
        _must(decoded.dtype == torch.float32, "decode gives float32")
    together = seen(records)
    _must(bool(together.isfinite().all()), "what is decoded is finite")
    alone = torch.cat([seen([record]) for record in records])
    _must(
        torch.allclose(together, alone, rtol=1e-4, atol=1e-4), "a batch is its images, one by one"
    )
    with torch.no_grad():
        one, beside = (
            embed(tail, spec.tail, first(codec.decode(some))) for some in (records[:1], records)
        )
    _must(torch.equal(one, beside), "a record says to the bit what it says beside others")
    _must(len(seen([])) == 0, "decode takes an empty list")
    damaged = bytearray(records[0])
    damaged[len(damaged) // 2] ^= 16
    for record, what in ((bytes(damaged), "a flipped bit"), (records[0][:-1], "a cut")):
        _refuses(StoreError, partial(codec.decode, [record]), f"{what} in a record")
    endless = tokens[0].clone()
    endless[0, 0] = torch.nan
    for wrong, what in ((endless, "tokens that are not finite"), (tokens, "several images")):
        _refuses(ModelError, partial(codec.encode, wrong), what)


def check_sampler(make: Callable[[], Sampler]) -> None:
    """Check a sampler: draws only stored examples, deterministic, restorable from its state.

    Parameters
    ----------
    make
        Returns a new sampler.

    Raises
    ------
    AssertionError
        A property is violated.
    """
    labels = {e: "abcd"[e % 4] for e in range(1, 78)} | dict.fromkeys((78, 79, 80), "e")

    def filled(sampler: S) -> S:
        for example, label in labels.items():
            sampler.add(example, label)
        return sampler

    _must(make().draw(31, Random(0)) == [], "where nothing is stored, nothing is drawn")
    _must(filled(make()).draw(0, Random(0)) == [], "none are drawn where none are wanted")
    one, two, living = (filled(make()) for _ in range(3))
    drawn = one.draw(9, Random(1))
    _must(drawn == two.draw(9, Random(1)), "the same generator gives the same draws")
    _must(len(drawn) <= 9, "no more are drawn than are wanted")
    random, left = Random(9), dict(labels)
    for turn in range(30):
        _must(set(living.draw(9, random)) <= left.keys(), "only what is stored is drawn")
        if turn % 3 == 0:  # the first of a label, and all of another, among them
            example = (1, 50, 5, 78, 80, 3, 30, 79, 60, 77)[turn // 3]
            living.remove(example, left.pop(example))
        if turn == 24:  # a label comes back
            living.add(81, "e")
            left[81] = "e"
    for example in (1, 9999):
        _refuses(
            (KeyError, ValueError),
            partial(living.remove, example, "a"),
            "removing what is not stored",
        )
    living.rename("b", "q")
    left = {example: "q" if label == "b" else label for example, label in left.items()}
    state = json.loads(json.dumps(living.state()))
    again = make()
    for example, label in left.items():
        again.add(example, label)
    again.restore(state)
    one_random, two_random = Random(10), Random(10)
    for example in range(100, 130):
        same = living.draw(9, one_random) == again.draw(9, two_random)
        _must(same, "a restored sampler goes on identically")
        for sampler in (living, again):
            sampler.add(example, "abcdefgh"[example % 8])
    fewer = {example: label for example, label in left.items() if label != "c" and example % 3}
    late = make()
    for example, label in fewer.items():
        late.add(example, label)
    late.restore(state)
    late_draws = {example for _ in range(50) for example in late.draw(9, random)}
    _must(late_draws <= fewer.keys(), "a state may know examples that were forgotten since")


def check_expert(make: Callable[[], Expert], dim: int) -> None:
    """Check an expert: shapes, exact removal, restorable from its state.

    Parameters
    ----------
    make
        Returns a new expert for image embeddings of width `dim`.
    dim
        That width.

    Raises
    ------
    AssertionError
        A property is violated.
    """
    images = F.normalize(torch.randn(12, dim, generator=torch.Generator().manual_seed(0)), dim=1)

    def learned(examples: Sequence[int], labels: int = 3) -> Expert:
        expert = make()
        for _ in range(labels):
            expert.enter()
        for example in examples:
            expert.add(example + 1, example % labels, images[example])
        return expert

    expert = learned(range(9))
    scores = expert.scores(images[9:], [2, -1, 0])
    _must(scores.shape == (3, 3), "scores are [image, label] of the rows asked about")
    _must(bool(scores.isfinite().all()), "scores are finite")
    _must(not scores[:, 1].any(), "a label never seen, row -1, scores 0")
    _must(torch.equal(scores, expert.scores(images[9:], [2, -1, 0])), "asking changes nothing")
    out = expert.left_out(images[:4], [0, 1, 2, 0], [1, 2, 3, 4])
    _must(out.shape == (4, 3), "left_out gives [example, row] of every row")
    _must(bool(out.isfinite().all()), "left_out is finite")
    for example in (7, 1):  # not in order of arrival
        expert.remove(example + 1, example % 3, images[example])
    _same(expert, learned([0, 2, 3, 4, 5, 6, 8]), images, "what is taken back leaves no trace")
    expert.remove(5, 1, images[4])  # the last one of its label
    expert.drop(1)
    less, rows = make(), {0: 0, 2: 1}
    for _ in rows:
        less.enter()
    for example in (0, 2, 3, 5, 6, 8):
        less.add(example + 1, rows[example % 3], images[example])
    _same(expert, less, images, "rows behind one that is dropped move up", rows=[0, 1])
    state = {name: value.clone() for name, value in less.state().items()}
    again = make()
    for _ in rows:
        again.enter()
    again.restore(state)
    _same(less, again, images, "a restored expert is the same", rows=[0, 1])
    again.add(10, 1, images[9])
    _must(
        all(torch.equal(state[name], value) for name, value in less.state().items()),
        "a state that was taken does not change any more",
    )


def _same(
    one: Expert, two: Expert, images: Tensor, promise: str, rows: Sequence[int] | None = None
) -> None:
    mine, other = one.state(), two.state()
    alike = mine.keys() == other.keys() and all(torch.equal(mine[k], other[k]) for k in mine)
    _must(alike, f"{promise}: states differ")
    said = [each.scores(images, list(rows or (0, 1, 2))) for each in (one, two)]
    _must(torch.equal(*said), f"{promise}: scores differ")


def check_pool(blend: Blend) -> None:
    """Check a blend: probabilities, batch invariance, the original model's if all are unseen.

    Parameters
    ----------
    blend
        The blend.

    Raises
    ------
    AssertionError
        A property is violated.
    """
    noise = torch.Generator().manual_seed(0)
    tuned, original, scores = (torch.randn(5, 4, generator=noise) for _ in range(3))
    records = [
        LabelRecord(9, 0.8, 0.5),
        LabelRecord(2, 1.0, 0.0),
        LabelRecord(0),
        LabelRecord(3, 0.3, 0.6),
    ]

    def said(images: slice, of: Sequence[LabelRecord] = records) -> Opinions:
        return Opinions.of(
            tuned[images],
            original[images],
            torch.tensor(0.5),
            of,
            scores={"gaussian": scores[images]},
            typical=torch.ones(4),
            copy=torch.zeros(len(tuned[images])),
            copy_of=torch.zeros(len(tuned[images]), dtype=torch.long),
        )

    values = blend(said(slice(None)))
    _must(values.shape == (5, 4), "it gives [image, label]")
    within = values.isfinite() & (values >= 0) & (values <= 1 + 1e-5)
    _must(bool(within.all()), "its values are probabilities")
    alone = torch.cat([blend(said(slice(i, i + 1))) for i in range(5)])
    _must(torch.allclose(values, alone, atol=1e-5), "a batch is its images, one by one")
    nothing = unlearned(original)
    _must(
        torch.allclose(blend(nothing), nothing.original, atol=1e-6),
        "where no label was taught, the original model answers",
    )
    share = blend.share(said(slice(None))).expand(5, 4)
    _must(bool(((share >= 0) & (share <= 1)).all()), "the tuned model's share is from 0 to 1")
    spoke = blend.speakers(said(slice(None)), values.argmax(1))
    _must(len(spoke) == 5 and all(isinstance(who, str) for who in spoke), "speakers: one an image")


def check_backbone(backbone: Backbone) -> None:
    """Check a backbone: its spec is correct, and a classifier learns with it.

    Parameters
    ----------
    backbone
        The model.

    Raises
    ------
    AssertionError
        A property is violated.
    """
    pictures = [PIL.Image.new("RGB", (40, 30), colour) for colour in ("red", "green", "blue")]
    spec, tokens = backbone.spec, backbone.encode(pictures)
    _must(
        tokens.shape == (3, spec.tokens, spec.tail.width), "encode gives spec.tokens, of its width"
    )
    _must(tokens.dtype == torch.float32 and bool(tokens.isfinite().all()), "in finite float32")
    _must(torch.equal(tokens, backbone.encode(pictures)), "encode gives the same again")
    alone = torch.cat([backbone.encode([picture]) for picture in pictures])
    _must(torch.allclose(tokens, alone, rtol=1e-2, atol=1e-2), "a batch is its images, one by one")
    with torch.no_grad():
        images = images_of(backbone.tail, spec.tail, tokens)
    _must(images.shape == (3, spec.dim), "the tail gives [image, spec.dim]")
    trained = [name for name in backbone.tail if spec.tail.trains(name)]
    _must(bool(trained), "the tail has weights that learning changes")
    plain = json.loads(json.dumps(spec.to_dict()))
    _must(Spec.from_dict(plain) == spec, "its description survives JSON")
    before = {name: value.clone() for name, value in backbone.tail.items()}
    settings = Settings(codec="tokens-fp32")
    with AnytimeClassifier.open(model=backbone, settings=settings) as classifier:
        vectors = classifier.backbone.embed_labels(["red", "blue"])
        _must(vectors.shape == (2, spec.dim), "labels are vectors [label, spec.dim]")
        unit = torch.allclose(vectors.norm(dim=1), torch.ones(2).to(vectors), atol=1e-4)
        _must(unit, "vectors of labels are of unit length")
        for picture, label in zip(pictures, ("red", "green", "blue"), strict=True):
            classifier.learn_one(picture, label)
        answers = [each.label for each in classifier.predict(pictures)]
    _must(answers == ["red", "green", "blue"], "what was taught is answered as it was taught")
    kept = all(torch.equal(before[name], value) for name, value in backbone.tail.items())
    _must(kept, "learning leaves the backbone's own tail alone")


def check_store(make: Callable[..., Store], folder: Path | None = None, **options: Any) -> None:
    """Check a store: examples, keys and journal, and in a folder their persistence.

    Parameters
    ----------
    make
        Opens a store: called with a folder or None, the metadata of a new store or None, whether it
        is read-only, and the options.
    folder
        A new folder; None for a store in RAM.
    **options
        Passed to `make`.

    Raises
    ------
    AssertionError
        A property is violated.
    """
    with make(folder, {"made": "here"}, False, **options) as store:
        _must(dict(store.meta) == {"made": "here"}, "meta is what it was made with")
        first = store.append("cat", b"one", ["cat", "dog"], "key 1")
        rest = store.append_many([Row("dog", b"two"), Row("cat", b"three", content=7)])
        ids = [first, *rest]
        _must(ids == sorted(set(ids)), "numbers of examples grow")
        _must(store.append("bird", b"other", key="key 1") == first, "a key teaches once")
        _must(store.read(ids[::-1]) == [b"three", b"two", b"one"], "read keeps the order asked for")
        _must(store.labels() == {"cat": 2, "dog": 1}, "labels come in order, with their counts")
        sets = [each.candidates for each in store.stored(ids[:2])]
        _must(sets == [("cat", "dog"), None], "candidates come back")
        _must(store.copies(7) == [(ids[2], "cat")], "an image is known again by its content")
        noted = store.record_event("note", {"of": 1})
        kinds = [event.kind for event in store.events()]
        _must(kinds == ["learn", "learn", "learn", "note"], "the journal has all, in order")
        _must(store.last == noted, "`last` is the number of the latest event")
        _must(store.forget([ids[1]]) == 1 and len(store) == 2, "forget removes")
        _refuses(StoreError, lambda: store.read([ids[1]]), "reading what was forgotten")
        _must(
            list(store.ids()) == [(ids[0], "cat"), (ids[2], "cat")], "ids come in order of arrival"
        )
        last = store.last
    store.close()  # a second time
    _refuses(StoreError, store.labels, "using what is closed")
    if folder is None:
        return
    for read_only in (False, True):
        with make(folder, None, read_only, **options) as store:
            _must(
                store.read([ids[0], ids[2]]) == [b"one", b"three"], "examples outlive the process"
            )
            _must(store.last == last, "the journal goes on where it ended")
            if read_only:
                _refuses(StoreError, lambda: store.append("cat", b"4"), "writing where one reads")


def _must(kept: bool, promise: str) -> None:
    if not kept:
        raise AssertionError(f"Not so: {promise}.")


def _refuses(
    error: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any], what: str
) -> None:
    names = error.__name__ if isinstance(error, type) else " or ".join(e.__name__ for e in error)
    try:
        call()
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{what} gives {names}, not {other!r}.") from other
    raise AssertionError(f"{what} is taken, and should give {names}.")
