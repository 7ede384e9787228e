"""Which of the paper's claims hold in these results, each with its numbers.

A claim names the recipe that shows it. Where that was not run, it is said so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from anytimecl.bench.results import Results
from anytimecl.bench.tables import FLEXIBLE, shared_stages

OURS = "AnytimeCL"
THEIRS = "AnytimeCL (paper's setting)"
CEILING = "joint training"
ORIGINAL = "original model"
KIN = (THEIRS, "AnytimeCL offline", CEILING)  # no baselines: the method itself, and the ceiling
WITHIN = 1.0  # points between the first task after the last and joint training
NOT_RUN = "not run"


@dataclass(frozen=True)
class Claim:
    """What is claimed, whether it holds here, and by which numbers."""

    text: str
    verdict: str  # "holds", "does not hold", NOT_RUN
    evidence: str


def claims(results: Results) -> list[Claim]:
    """Every claim, in the paper's order."""
    return [claim for check in CHECKS for claim in _checked(check, results)]


Check = Callable[[Results], Iterator[tuple[str, bool, str]]]


def _checked(check: Check, results: Results) -> Iterator[Claim]:
    """A check whose numbers are missing was not run."""
    told = False
    try:
        for text, holds, evidence in check(results):
            told = True
            yield Claim(text, "holds" if holds else "does not hold", evidence)
    except (StopIteration, LookupError, ValueError, RuntimeError):
        told = False
    if not told:
        yield Claim((check.__doc__ or "").split("\n")[0], NOT_RUN, "")


# ---------------------------------------------------------------------------- against the baselines


def _above_baselines(results: Results, recipe: str) -> tuple[bool, str]:
    stages = shared_stages(results, recipe)
    means = {
        name: fmean(results.over_stages(recipe, name, None, stages))
        for name in results.methods(recipe)
        if name not in KIN
    }
    return _best(means)


def _best(means: dict[str, float]) -> tuple[bool, str]:
    ours = means.pop(OURS)
    best = max(means, key=lambda name: means[name])
    return ours >= means[best], f"{ours:.2f}; the best baseline, {best}, {means[best]:.2f}"


def data_incremental(results: Results) -> Iterator[tuple[str, bool, str]]:
    """AnytimeCL is at or above every baseline in data-incremental learning, mean over stages."""
    yield (data_incremental.__doc__ or "", *_above_baselines(results, "data_incremental"))


def class_incremental(results: Results) -> Iterator[tuple[str, bool, str]]:
    """AnytimeCL is at or above every baseline in class-incremental learning, mean over stages."""
    yield (class_incremental.__doc__ or "", *_above_baselines(results, "class_incremental"))


def task_incremental(results: Results) -> Iterator[tuple[str, bool, str]]:
    """AnytimeCL is at or above every baseline in task-incremental learning, mean over stages."""
    yield (task_incremental.__doc__ or "", *_above_baselines(results, "task_incremental"))


def flexible_inference(results: Results) -> Iterator[tuple[str, bool, str]]:
    """AnytimeCL is at or above every baseline in flexible inference."""
    recipe = "task_incremental"
    names = [name for name in results.methods(recipe) if name not in KIN]
    for kind in FLEXIBLE:
        means = {name: fmean(results.final(recipe, name, kind)) for name in names}
        yield (f"{(flexible_inference.__doc__ or '')[:-1]}, {kind}.", *_best(means))


def novel_tasks(results: Results) -> Iterator[tuple[str, bool, str]]:
    """Novel-task accuracy after all learning equals the original model's exactly."""
    recipe = "task_incremental"
    ours = results.final(recipe, OURS, "zero-shot")
    theirs = results.final(recipe, ORIGINAL, "zero-shot")
    if not ours or len(ours) != len(theirs):
        raise LookupError
    told = f"{fmean(ours):.4f} and {fmean(theirs):.4f} over {len(ours)} seeds"
    yield novel_tasks.__doc__ or "", ours == theirs, told


def not_forgotten(results: Results) -> Iterator[tuple[str, bool, str]]:
    """The first task, after the last, is within 1.0 of joint training."""
    recipe = "task_incremental"
    first = results.of(recipe)[0]["tasks"][0]
    ours = fmean(results.final(recipe, OURS, "task", None, first))
    joint = fmean(results.final(recipe, CEILING, "task", None, first))
    yield not_forgotten.__doc__ or "", ours >= joint - WITHIN, f"{ours:.2f} and {joint:.2f}"


# ---------------------------------------------------------------------------------------- ablations


def online_weighting(results: Results) -> Iterator[tuple[str, bool, str]]:
    """OCW is the best of the paper's blends at every stage."""
    for recipe in ("data_incremental", "class_incremental"):
        ours = {k: fmean(v) for k, v in results.by_stage(recipe, THEIRS, "ocw").items()}
        if not ours:
            raise LookupError(recipe)
        worst = ("", "", 0.0)
        for reading in ("original", "tuned", "aim", "ocw_rounded"):
            for stage, values in results.by_stage(recipe, THEIRS, reading).items():
                gap = ours[stage] - fmean(values)
                worst = min(worst, (stage, reading, gap), key=lambda each: each[2])
        told = f"worst: {worst[2]:+.2f} against {worst[1]} at {worst[0]}" if worst[0] else "always"
        name = recipe.replace("_", "-")
        yield f"OCW is the best of the paper's blends at every stage, {name}.", not worst[0], told


def default_blend(results: Results) -> Iterator[tuple[str, bool, str]]:
    """This project's default blend is at or above OCW, mean over stages."""
    for recipe in ("data_incremental", "class_incremental"):
        ours, theirs = (fmean(results.over_stages(recipe, OURS, r)) for r in (None, "ocw"))
        name = recipe.replace("_", "-")
        text = f"This project's default blend is at or above OCW, mean over stages, {name}."
        yield text, ours >= theirs, f"{ours:.2f} and {theirs:.2f}"


def tuned_parts(results: Results) -> Iterator[tuple[str, bool, str]]:
    """Tuning the block alone keeps novel labels best, of the tuned models alone."""
    names = ("block", "classifier", "block and classifier")
    for kind, text in (
        ("zero-shot", "Tuning the block alone keeps novel labels best, of the tuned models alone."),
        ("task", "Tuning the block alone is best on the target tasks, of the tuned models alone."),
    ):
        found = {n: fmean(results.final("tuned_parts", n, kind, "tuned")) for n in names}
        told = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        yield text, found["block"] >= max(found.values()), told


def samplers(results: Results) -> Iterator[tuple[str, bool, str]]:
    """Class-balanced and uniform sampling are the best samplers, mean over stages."""
    found = {n: fmean(results.over_stages("samplers", n)) for n in results.methods("samplers")}
    simple = min(found["class-balanced"], found["uniform"])
    others = max(found["FIFO"], found["frequency-weighted"])
    yield samplers.__doc__ or "", simple >= others, _all(found)


def other_loss(results: Results) -> Iterator[tuple[str, bool, str]]:
    """The "other" loss helps at every stage."""
    without = results.by_stage("other_loss", "beta 0")
    gaps = {
        stage: fmean(values) - fmean(without[stage])
        for stage, values in results.by_stage("other_loss", "beta 0.1").items()
    }
    told = "gain by stage: " + ", ".join(f"{stage} {gap:+.2f}" for stage, gap in gaps.items())
    yield other_loss.__doc__ or "", min(gaps.values()) >= 0, told


def batch_size(results: Results) -> Iterator[tuple[str, bool, str]]:
    """Batches under 32 are worse than 32 at the end; 64 or 128 are better; 256 is worse."""
    found = {
        name: fmean(list(results.by_stage("batch_size", name).values())[-1])
        for name in results.methods("batch_size")
    }
    at = {int(name.split()[1]): value for name, value in found.items()}
    holds = max(at[8], at[16]) < at[32] < max(at[64], at[128]) and at[256] < at[32]
    yield batch_size.__doc__ or "", holds, _all(found)


def eta(results: Results) -> Iterator[tuple[str, bool, str]]:
    """OCW is robust against the memory of its estimates (within a point), longer being better."""
    readings = [f"ocw eta={value:g}" for value in (0.5, 0.9, 0.95, 0.99)]
    found = {r: fmean(results.over_stages("eta", OURS, r)) for r in readings}
    values = list(found.values())
    holds = max(values) - min(values) <= 1 and values[-1] == max(values)
    yield eta.__doc__ or "", holds, _all(found)


def compression(results: Results) -> Iterator[tuple[str, bool, str]]:
    """Compression costs little."""
    task = "cifar100"
    names = (
        "tokens-fp16",
        "pca-image 5",
        "pca-image-cls 5",
        "pca-image-cls-int8 5",
        "attention-pca",
    )
    full, plain, weighted, int8, ours = (
        fmean(results.final("codecs", name, "task", "tuned", task)) for name in names
    )
    yield (
        "The CLS weight improves the per-image PCA, and 8 bits lose under a point of it.",
        weighted > plain and int8 > weighted - 1,
        f"plain {plain:.2f}, weighted {weighted:.2f}, in 8 bits {int8:.2f}",
    )
    yield (
        "The paper's codec (5 components, 8 bits) is within a point of full tokens.",
        int8 > full - 1,
        f"{int8:.2f} and {full:.2f}",
    )
    yield (
        "This project's codec is within 0.5 of full tokens on cifar100.",
        ours > full - 0.5,
        f"{ours:.2f} and {full:.2f}",
    )


def _all(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in found.items())


CHECKS: tuple[Check, ...] = (
    data_incremental,
    class_incremental,
    task_incremental,
    flexible_inference,
    novel_tasks,
    not_forgotten,
    online_weighting,
    default_blend,
    tuned_parts,
    samplers,
    other_loss,
    batch_size,
    eta,
    compression,
)
