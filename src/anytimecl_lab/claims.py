"""Which of the paper's claims hold in these results, each with its numbers.

A claim names the recipe that shows it. Where that was not run, it is said so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from anytimecl_lab import metrics
from anytimecl_lab._claim import (
    CEILING,
    KIN,
    ORIGINAL,
    PREDECESSOR,
    Check,
    Told,
    by_stage,
    run_in,
)
from anytimecl_lab.ablation_claims import ABLATIONS
from anytimecl_lab.few_shot import gaps, leads
from anytimecl_lab.results import Results
from anytimecl_lab.scenarios import SEEN
from anytimecl_lab.scenarios import THEIRS as MIX
from anytimecl_lab.table import shown
from anytimecl_lab.tables import FLEXIBLE, named, shared_stages, variants

WITHIN = 1.0  # points between the first task after the last and joint training
BELOW = 0.7  # points below the best peer, with few examples
AHEAD = 3.0  # points above each peer, mean over all numbers of examples
NOT_RUN = "not run"
STAGED = ("data_incremental", "class_incremental", "task_incremental")


@dataclass(frozen=True)
class Claim:
    """What is claimed, whether it holds here, and by which numbers."""

    text: str
    verdict: str  # "holds", "does not hold", NOT_RUN
    evidence: str
    model: str = ""  # that it was run with


def claims(results: Results) -> list[Claim]:
    """Every claim, in the paper's order."""
    return [claim for check in CHECKS for claim in _checked(check, results)]


def _checked(check: Check, results: Results) -> Iterator[Claim]:
    """A check whose numbers are missing was not run."""
    told = False
    model = models(results)
    try:
        for text, holds, evidence in check(results):
            told = True
            yield Claim(text, "holds" if holds else "does not hold", evidence, model)
    except (StopIteration, LookupError, ValueError, RuntimeError):
        told = False
    if not told:
        yield Claim((check.__doc__ or "").split("\n")[0], NOT_RUN, "")


def models(results: Results) -> str:
    """The models that the lines are of, with their text side where it is not their own."""
    found = {
        f"{line['backbone']}"
        + (f" with {line['label_vectors']}" if "label_vectors" in line else "")
        for line in results.lines.values()
    }
    return "; ".join(sorted(found))


# ---------------------------------------------------------------------------- against the baselines


def at_every_stage(results: Results) -> Told:
    """AnytimeCL is above its predecessor, the linear probe with AIM, at every stage."""
    for recipe in STAGED:
        for setting, name, _ in run_in(results, recipe):
            if PREDECESSOR not in results.methods(recipe):
                continue
            where = f"{recipe.replace('_', '-')}, {setting}"
            for reading in (None, *variants(results, recipe, PREDECESSOR)):
                worst, told = by_stage(results, recipe, name, PREDECESSOR, reading)
                rival = named(PREDECESSOR, reading)
                yield f"AnytimeCL is above {rival} at every stage, {where}.", worst > 0, told


def above_baselines(results: Results) -> Told:
    """AnytimeCL is at or above every baseline, mean over stages."""
    for recipe in (*STAGED, "union_data_incremental", "mtil"):
        for setting, name, _ in run_in(results, recipe):
            stages = shared_stages(results, recipe)
            means = {
                named(each, reading): results.over_stages(recipe, each, reading, stages)
                for each, reading in _everyone(results, recipe)
            }
            where = f"{recipe.replace('_', '-')}, {setting}"
            yield (f"AnytimeCL is at or above every baseline, {where}.", *_best(means, name))


def _everyone(results: Results, recipe: str) -> Iterator[tuple[str, str | None]]:
    """Every method with its default reading, and the baselines with their variants, too."""
    for name in results.methods(recipe):
        yield name, None
        if name not in KIN:
            yield from ((name, reading) for reading in variants(results, recipe, name))


def _best(means: Mapping[str, list[float]], ours: str) -> tuple[bool, str]:
    rivals = {n: fmean(values) for n, values in means.items() if n not in KIN and values}
    best = max(rivals, key=lambda name: rivals[name])
    holds = fmean(means[ours]) >= rivals[best]
    return holds, f"{shown(means[ours])}; the best baseline, {best}, {shown(means[best])}"


def flexible_inference(results: Results) -> Told:
    """AnytimeCL is at or above every baseline in flexible inference."""
    recipe = "task_incremental"
    for kind in (*FLEXIBLE, MIX):
        for setting, name, _ in run_in(results, recipe):
            means = {
                named(each, reading): results.final(recipe, each, kind, reading)
                for each, reading in _everyone(results, recipe)
            }
            if means[name]:
                text = f"{(flexible_inference.__doc__ or '')[:-1]}, {kind}, {setting}."
                yield (text, *_best(means, name))


def transfer(results: Results) -> Told:
    """Nothing is lost on tasks not yet learned: Transfer in MTIL is the original model's."""
    original = [metrics.transfer(matrix) for matrix in results.matrices("mtil", ORIGINAL)]
    note = "names that two tasks share are seen before their task comes, and may move"
    for setting, name, _ in run_in(results, "mtil"):
        for reading in (None, SEEN):
            found = [metrics.transfer(m) for m in results.matrices("mtil", name, reading)]
            if found:
                how = "" if reading is None else f" by the rule {reading!r}"
                text = f"{(transfer.__doc__ or '')[:-1]}, {setting}{how}."
                holds = fmean(found) >= fmean(original) - 1e-9
                yield text, holds, f"{shown(found)} and {shown(original)}; {note}"


def novel_tasks(results: Results) -> Told:
    """Novel-task accuracy after all learning equals the original model's exactly."""
    recipe = "task_incremental"
    theirs = results.final(recipe, ORIGINAL, "zero-shot")
    for setting, name, _ in run_in(results, recipe):
        ours = results.final(recipe, name, "zero-shot")
        if ours and len(ours) == len(theirs):
            told = f"{fmean(ours):.4f} and {fmean(theirs):.4f} over {len(ours)} seeds"
            yield f"{(novel_tasks.__doc__ or '')[:-1]}, {setting}.", ours == theirs, told


def not_forgotten(results: Results) -> Told:
    """The first task, after the last, is within 1.0 of joint training."""
    recipe = "task_incremental"
    first = results.of(recipe)[0]["tasks"][0]
    joint = results.final(recipe, CEILING, "task", None, first)
    for setting, name, _ in run_in(results, recipe):
        ours = results.final(recipe, name, "task", None, first)
        holds = fmean(ours) >= fmean(joint) - WITHIN
        told = f"{shown(ours)} and {shown(joint)}"
        yield f"{(not_forgotten.__doc__ or '')[:-1]}, {setting}.", holds, told


def beside_peers(results: Results) -> Told:
    """With 1 to 16 examples a label AnytimeCL is at most 0.7 below the best peer of each point."""
    found = gaps(results, "few_shot")
    task, labels, shot = worst = min(found, key=lambda point: found[point])
    below = sum(gap < -BELOW for gap in found.values())
    place = f"{task}, {labels}, {shot}"
    told = (
        f"{below} of {len(found)} points are further below; worst: {found[worst]:+.2f} at {place}"
    )
    yield beside_peers.__doc__ or "", not below, told


def above_peers(results: Results) -> Told:
    """With 1 to 16 examples a label AnytimeCL is 3 points above every single peer in the mean."""
    found = leads(results, "few_shot")
    (name, reading), lead = min(found.items(), key=lambda each: each[1])
    told = f"{lead:+.2f} to {name} {reading}".strip()
    yield above_peers.__doc__ or "", lead >= AHEAD, told


CHECKS: tuple[Check, ...] = (
    at_every_stage,
    above_baselines,
    flexible_inference,
    novel_tasks,
    not_forgotten,
    transfer,
    beside_peers,
    above_peers,
    *ABLATIONS,
)
