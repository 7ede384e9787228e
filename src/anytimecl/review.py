"""Pages of stored examples, with the experts' current predictions; probable label errors first.

An example is *suspicious* if the Gaussian expert, with the example left out, gives its label a low
probability.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.codec import Codec
from anytimecl.errors import StoreError
from anytimecl.images import ImageSource
from anytimecl.journaled import JournaledTrainer
from anytimecl.labels import clean_label
from anytimecl.memory import Store
from anytimecl.memory.contract import Progress
from anytimecl.predicting import Predicting
from anytimecl.suspicion import suspicion, without_itself
from anytimecl.tail import images_of

CHUNK = 256  # examples decoded at once
MOST = 1000  # examples on a page

Said = Mapping[str, tuple[str, float]]  # expert -> its label, and the probability


@dataclass(frozen=True)
class StoredExample:
    """A stored example, and the experts' predictions for it."""

    id: int
    source: str | None  # its name where it comes from
    label: str
    time: datetime | None  # when it was first learned
    says: Said  # each expert's current prediction; leave-one-out, except for the two models
    suspicion: float | None = None  # probability that its label is wrong, if asked for
    similarity: float | None = None  # cosine to the given image, if any


@dataclass(frozen=True)
class ExamplePage:
    """A page of examples."""

    examples: list[StoredExample]
    next: str | None  # `after` of the next page; None on the last one
    total: int  # number of matches on all pages


class Found(NamedTuple):
    """A matching example, and the score that it is ranked by."""

    id: int
    score: float | None = None


# Matching


def matching(store: Store, label: str | None, source: str | None) -> list[int]:
    """Examples of a label, with a text in the name of their source; the newest first."""
    wanted, places = _where(label, source)
    with store.reading() as db:
        rows = db.execute(f"SELECT e.id {wanted} ORDER BY e.id DESC", places)
        return [example for (example,) in rows.fetchall()]


def newest(
    store: Store, label: str | None, source: str | None, after: str | None, limit: int
) -> tuple[list[Found], int]:
    """A page of `matching`, without reading the rest, and the number of matches."""
    wanted, places = _where(label, source)
    before = "" if after is None else "AND e.id < :after"
    page = f"SELECT e.id {wanted} {before} ORDER BY e.id DESC LIMIT :limit"
    with store.reading() as db:
        rows = db.execute(page, {**places, "after": _number(after), "limit": limit}).fetchall()
        if source is None:
            counts = store.vocabulary.counts()
            total = sum(counts.values()) if label is None else counts.get(label, 0)
        else:
            total = int(db.execute(f"SELECT count(*) {wanted}", places).fetchone()[0])
    return [Found(example) for (example,) in rows], total


def ranked(found: Sequence[Found], after: str | None, limit: int) -> list[Found]:
    """A page of examples by descending score."""
    order = sorted(found, key=_rank)
    if after is None:
        return order[:limit]
    score, _, number = after.partition(":")
    try:
        last = _rank(Found(int(number), float(score)))
    except ValueError as error:
        raise _no_cursor(after) from error
    return [each for each in order if _rank(each) > last][:limit]


def cursor(last: Found) -> str:
    """Cursor of the page after an example."""
    return str(last.id) if last.score is None else f"{last.score!r}:{last.id}"


def _rank(found: Found) -> tuple[float, int]:
    return -(found.score or 0.0), -found.id


def _number(after: str | None) -> int | None:
    try:
        return None if after is None else int(after)
    except ValueError as error:
        raise _no_cursor(after) from error


def _no_cursor(after: str | None) -> StoreError:
    return StoreError(f"{after!r} is no place to go on from: use `next` of the page before.")


def _where(label: str | None, source: str | None) -> tuple[str, dict[str, object]]:
    wanted = "FROM example e WHERE e.label != 0"
    if label is not None:
        wanted = "FROM example e WHERE e.label = (SELECT id FROM label WHERE text = :label)"
    if source is not None:
        wanted = wanted.replace(" WHERE", " JOIN source s ON s.example = e.id WHERE", 1)
        wanted += " AND instr(lower(s.name), lower(:source)) > 0"
    return wanted, {"label": label, "source": source}


# Predictions


class Vectors:
    """Cache of the original model's embeddings of stored examples, computed on demand.

    Thread-safe: each call works on the cache as it was at its start, and stores its result unless
    another thread changed the cache meanwhile.
    """

    def __init__(self, dim: int) -> None:
        self._empty = torch.empty(0, dim, dtype=torch.float16)
        self._kept: tuple[dict[int, int], Tensor] = {}, self._empty  # row by example, embeddings
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._kept = {}, self._empty

    def of(
        self, examples: Sequence[int], trainer: JournaledTrainer, progress: Progress | None = None
    ) -> tuple[list[int], Tensor]:
        """Those of `examples` that can be read, and their embeddings [example, dim]."""
        began = self._kept
        places, parts = dict(began[0]), [began[1]]
        new = [example for example in examples if example not in places]
        for start in range(0, len(new), CHUNK):
            good = trainer.memory.stored(new[start : start + CHUNK])
            if good:
                records = [each.record for each in good]
                parts.append(vectors_of(records, trainer.codec, trainer.backbone).half())
                places |= {each.id: place for place, each in enumerate(good, len(places))}
            if progress is not None:
                progress(min(start + CHUNK, len(new)), len(new))
        vectors = torch.cat(parts)
        with self._lock:
            if self._kept is began:
                self._kept = places, vectors
        found = [example for example in examples if example in places]
        return found, vectors[[places[example] for example in found]].float()


@torch.no_grad()
def vectors_of(records: Sequence[bytes], codec: Codec, backbone: Backbone) -> Tensor:
    """The original model's embeddings of records, [record, dim]."""
    tokens = codec.decode(records, backbone.device)
    return images_of(backbone.tail, backbone.spec.tail, tokens).float().cpu()


def said(labels: Sequence[str], probabilities: Tensor) -> list[tuple[str, float]]:
    """The most probable label of each image, with its probability, from [image, label]."""
    best, at = probabilities.max(1)
    return [(labels[i], value) for i, value in zip(at.tolist(), best.tolist(), strict=True)]


class Review(Predicting):
    """The part of a classifier that lists stored examples."""

    _vectors: Vectors

    def examples(
        self,
        label: str | None = None,
        source: str | None = None,
        like: ImageSource | Tensor | None = None,
        suspicious: bool = False,
        after: str | None = None,
        limit: int = 50,
        progress: Progress | None = None,
    ) -> ExamplePage:
        """Stored examples, a page at a time, the newest first.

        Parameters
        ----------
        label, source
            Only examples of this label, or with this text in the name of their source.
        like
            Rank by similarity to this image, or to one given as tokens from `encode`.
        suspicious
            Rank by the probability of a label error. The first such call, or the first with
            `like`, decodes every example concerned, which `progress` reports.
        after
            `next` of the page before.
        limit
            Examples on the page, 1000 at most.
        progress
            Called with the number of decoded examples and their total.

        Returns
        -------
        ExamplePage
            The examples, and where the next page begins.

        Raises
        ------
        ValueError
            Both `like` and `suspicious` are given, or `limit` is out of range.
        """
        if like is not None and suspicious:
            raise ValueError("Ask for examples like an image or for suspicious ones, not for both.")
        if not isinstance(limit, int) or not 1 <= limit <= MOST:
            raise ValueError(f"A page has 1 to {MOST} examples, not {limit!r}.")
        label = None if label is None else clean_label(label)
        if like is None and not suspicious:
            page, total = newest(self.memory, label, source, after, limit + 1)
        else:
            wanted = matching(self.memory, label, source)
            found, vectors = self._vectors.of(wanted, self._trainer, progress)
            scores = self._doubts(found, vectors) if like is None else self._nearness(vectors, like)
            every = [Found(*each) for each in zip(found, scores.tolist(), strict=True)]
            page, total = ranked(every, after, limit + 1), len(every)
        more = len(page) > limit
        page = page[:limit]
        shown = self._shown(page, suspicious=suspicious)
        return ExamplePage(shown, cursor(page[-1]) if more else None, total)

    def _nearness(self, vectors: Tensor, like: ImageSource | Tensor) -> Tensor:
        with torch.no_grad():
            tokens = like[None] if isinstance(like, Tensor) else self.encode([like])
            image = images_of(self.backbone.tail, self.backbone.spec.tail, tokens)[0]
        return vectors @ image.float().cpu()

    def _doubts(self, examples: Sequence[int], vectors: Tensor) -> Tensor:
        with self._lock.reading():
            trainer = self._trainer
            known = [bool(trainer.label_of(example)) for example in examples]
            rows = [trainer.rows.get(trainer.label_of(example), 0) for example in examples]
            doubts = suspicion(trainer.model.gaussian, vectors, rows)
        return torch.where(torch.tensor(known, dtype=torch.bool), doubts, torch.zeros(()))

    def _shown(self, page: Sequence[Found], *, suspicious: bool) -> list[StoredExample]:
        stored = dict(self.memory.rows([found.id for found in page]))
        said_of = self._said({example: row.record for example, row in stored.items()})
        return [
            StoredExample(
                id=found.id,
                source=stored[found.id].source,
                label=stored[found.id].label,
                time=when(stored[found.id].time),
                says=said_of.get(found.id, {}),
                suspicion=found.score if suspicious else None,
                similarity=None if suspicious else found.score,
            )
            for found in page
            if found.id in stored
        ]

    @torch.no_grad()
    def _said(self, records: Mapping[int, bytes]) -> dict[int, Said]:
        """Each expert's prediction for examples, over every seen label."""
        if not records:
            return {}
        trainer = self._trainer
        tokens = trainer.codec.decode(list(records.values()), self.backbone.device)
        with self._lock.reading():
            labels = list(trainer.labels)
            opinions = trainer.model.opinions(tokens, labels, trainer.model.vectors)
            images = trainer.learner.original_images(tokens).float().cpu()
            rows = [trainer.rows.get(trainer.label_of(example), 0) for example in records]
            scores = {"gaussian": without_itself(trainer.model.gaussian, images, rows)}
            scores |= trainer.model.others.left_out(images, rows, list(records))
        told = {
            "tuned": said(labels, opinions.tuned),
            "original": said(labels, opinions.original),
            **{name: said(labels, score.softmax(1)) for name, score in scores.items()},
        }
        return {
            example: {expert: of[at] for expert, of in told.items()}
            for at, example in enumerate(records)
        }


def when(time: int | None) -> datetime | None:
    """From milliseconds since 1970."""
    return None if time is None else datetime.fromtimestamp(time / 1000, UTC)
