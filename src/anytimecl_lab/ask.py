"""A run of one method: it learns stage by stage, and is evaluated after each."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import anytimecl
from anytimecl_lab.digest import digest
from anytimecl_lab.examples import CHUNK, take
from anytimecl_lab.methods import METHODS, JoinedEncoder, Method, OnEmbeddings
from anytimecl_lab.metrics import auroc, calibration_error
from anytimecl_lab.recipe import Cell, settings_mark
from anytimecl_lab.results import Line
from anytimecl_lab.scenarios import FOREIGN, REFUSALS, SURE, Question, Stage, strictly_novel
from anytimecl_lab.studio import Studio

Answers = dict[str, dict[str, dict[str, float]]]  # kind -> question -> reading -> per cent


@torch.no_grad()
def run_cell(studio: Studio, cell: Cell) -> Line:
    """Learn stage by stage, evaluate after each, and measure the time."""
    began = time.perf_counter()
    chosen = cell.contestant
    streams = studio.streams(cell.subject, cell.seed)
    told: list[Line] = []
    first = 0
    for stages in streams:
        world = studio.world(stages, cell.seed, chosen)
        method = METHODS[chosen.method](world, **chosen.options)
        told += _learn(studio, cell, method, stages, first)
        first += len(stages)
    line = about(studio, cell) | {"reading": method.default}
    if chosen.codec is not None:
        line["bytes"] = studio.records(chosen.codec, chosen.components).bytes
    return line | {"results": told, "seconds": round(time.perf_counter() - began, 3)}


def _learn(
    studio: Studio, cell: Cell, method: Method, stages: Sequence[Stage], first: int
) -> Iterator[Line]:
    """Run a method on a stream; `first` is the number of its first stage."""
    waiting: list[int] = []  # examples not passed to the method yet
    arrived = 0
    for number, stage in enumerate(stages, start=first):
        waiting += stage.examples
        arrived += len(stage.examples)
        if not method.online and not stage.whole:
            continue
        if waiting:
            method.learn(waiting)
        waiting = []
        few = studio.recipe.scenario == "few-shot"
        questions = studio.questions(cell.subject)
        if stage is stages[-1] and not few:
            questions += studio.final_questions(cell.seed)
        answers = ask(studio, method, questions, sure=few)
        if few:
            answers |= none_of_these(studio, method, cell.subject)
        yield {"stage": number, "name": stage.name, "examples": arrived, "answers": answers}


def about(studio: Studio, cell: Cell) -> Line:
    """Settings, hardware, date and versions of a run."""
    recipe, vectors = studio.recipe, studio.label_vectors
    cuda = studio.device.startswith("cuda")
    where = torch.cuda.get_device_name(studio.device) if cuda else "CPU"
    return {
        "recipe": cell.recipe,
        "group": cell.group,
        "scenario": recipe.scenario,
        "shows": recipe.shows,
        "backbone": recipe.backbone,
        "fingerprint": studio.backbone.spec.fingerprint,
        "subject": cell.subject,
        "tasks": list(recipe.tasks),
        "novel": list(recipe.novel),
        "labels": recipe.labels[0],
        **({} if vectors is None else {"label_vectors": f"{vectors.file.name} {vectors.mark}"}),
        "validation": studio.validation,
        "place": recipe.methods.index(cell.contestant),  # row in the recipe's tables
        **asdict(cell.contestant),
        "seed": cell.seed,
        "digest": digest(),
        "settings": settings_mark(recipe, cell.contestant),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {"device": where, "processor": _processor(), "cores": os.cpu_count()},
        "versions": {
            "anytimecl": anytimecl.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


def _processor() -> str:
    """Name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


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
        elif isinstance(method, OnEmbeddings):
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
        foreign = _none(studio, method, novel, images, names) if images else None
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
