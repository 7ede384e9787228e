"""Evaluation of a method: accuracy, calibration, and "none of these"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from anytimecl_lab.examples import CHUNK, take
from anytimecl_lab.methods import Frozen, JoinedEncoder, Method
from anytimecl_lab.metrics import auroc, calibration_error
from anytimecl_lab.scenarios import FOREIGN, REFUSALS, SURE, Question, strictly_novel
from anytimecl_lab.studio import Studio

Answers = dict[str, dict[str, dict[str, float]]]  # kind -> question -> reading -> per cent


def ask(
    studio: Studio, method: Method, questions: Sequence[Question], *, sure: bool = False
) -> Answers:
    """Accuracy in per cent of every variant; with `sure`, also the calibration error."""
    answers: Answers = {}
    for question in questions:
        told = _told(studio, method, question)
        answers.setdefault(question.kind, {})[question.name] = {
            reading: _per_cent(float(right.double().mean())) for reading, (_, right) in told.items()
        }
        if sure:
            answers.setdefault(SURE, {})[question.name] = {
                reading: _per_cent(calibration_error(best.tolist(), right.tolist()))
                for reading, (best, right) in told.items()
            }
    return answers


def _told(studio: Studio, method: Method, question: Question) -> dict[str, tuple[Tensor, Tensor]]:
    """Variant -> for each image the probability of the prediction, and whether it is right."""
    place = {name: at for at, name in enumerate(question.candidates)}
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for task, some in _chunks(question):
        labels = studio.test[task].labels
        target = torch.tensor([place[labels[i]] for i in some], device=studio.device)
        at = torch.tensor(some, device=studio.device)
        if isinstance(method, JoinedEncoder):  # needs both encoders
            encoder = method.world.second.name if method.world.second else None
            tokens = take(studio.asked(task, encoder), some, studio.device)
            read = method.both(studio.asked_vectors(task)[at], tokens, question.candidates)
        elif isinstance(method, Frozen):  # uses embeddings only
            read = method.read(studio.asked_vectors(task)[at], question.candidates)
        else:
            tokens = take(studio.asked(task), some, studio.device)
            read = method.readings(tokens, question.candidates)
        for reading, scores in read.items():
            best, answer = scores.max(1)
            found.setdefault(reading, []).append((best.cpu(), (answer == target).cpu()))
    return {
        reading: (torch.cat([best for best, _ in parts]), torch.cat([right for _, right in parts]))
        for reading, parts in found.items()
    }


def none_of_these(studio: Studio, method: Method, task: str) -> Answers:
    """How well "none of these" separates images of a task from those of novel tasks.

    Novel task -> area under the ROC curve, and rates of rejected images, in per cent; empty if the
    method does not predict it.
    """
    names = studio.sets[task].names
    own = _none(studio, method, task, range(len(studio.test[task].labels)), names)
    found: dict[str, dict[str, float]] = {}
    for novel in studio.recipe.novel:
        images = strictly_novel({task: studio.named[task].names}, studio.test[novel].labels)
        foreign = _none(studio, method, novel, images, names)
        if own is not None and foreign is not None:
            area = auroc(own.tolist(), foreign.tolist())
            refused = [float((each > method.refused).double().mean()) for each in (own, foreign)]
            shares = zip(REFUSALS, (area, *refused), strict=True)
            found[novel] = {what: _per_cent(share) for what, share in shares}
    return {FOREIGN: found} if found else {}


def _none(
    studio: Studio, method: Method, task: str, images: Sequence[int], names: Sequence[str]
) -> Tensor | None:
    """Scores of "none of these", [image]."""
    parts = []
    for start in range(0, len(images), CHUNK):
        some = images[start : start + CHUNK]
        part = method.none(take(studio.asked(task), some, studio.device), names)
        if part is None:
            return None
        parts.append(part.cpu())
    return torch.cat(parts)


def _chunks(question: Question) -> Iterator[tuple[str, list[int]]]:
    """Batches of a question's images, of one task each."""
    by_task: dict[str, list[int]] = {}
    for task, i in question.images:
        by_task.setdefault(task, []).append(i)
    for task, images in by_task.items():
        for start in range(0, len(images), CHUNK):
            yield task, images[start : start + CHUNK]


def _per_cent(share: float) -> float:
    return round(100 * share, 4)
