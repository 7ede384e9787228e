"""Shared by checks of claims: names, the two settings, and leads by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from anytimecl_lab.few_shot import OURS
from anytimecl_lab.metrics import Spread, spread
from anytimecl_lab.recipe import OUR_SETTING
from anytimecl_lab.results import Results
from anytimecl_lab.table import shown

Told = Iterator[tuple[str, bool, str]]  # text, whether it holds, evidence
Check = Callable[[Results], Told]

THEIRS = "AnytimeCL (paper's setting)"
CEILING = "joint training"
ORIGINAL = "original model"
PREDECESSOR = "linear probe (AIM)"
OFFLINE = ("AnytimeCL offline", "AnytimeCL offline (paper's setting)")
KIN = (OURS, THEIRS, *OFFLINE, CEILING)  # not baselines: the method itself, and the upper bound
# Description of a setting, the method's name in it, and the suffix of its ablations' names.
SETTINGS = (
    ("in the paper's setting", THEIRS, ""),
    ("in this project's setting", OURS, OUR_SETTING),
)


def run_in(results: Results, recipe: str, first: str = "") -> Iterator[tuple[str, str, str]]:
    """Settings in which a recipe was run: of the method, or of an ablation's `first` row."""
    lines = results.of(recipe) if recipe in results.recipes() else []
    paper = {str(line["name"]): bool(line["options"].get("paper")) for line in lines}
    for setting, name, suffix in SETTINGS:
        own = first + suffix if first else name
        # Older ablations in this project's setting have the name that now is the paper setting's.
        if own in paper and (not first or paper[own] == (name == THEIRS)):
            yield setting, name, suffix


def by_stage(
    results: Results, recipe: str, ours: str, theirs: str, reading: str | None = None
) -> tuple[float, str]:
    """The smallest lead over common stages, and all leads with standard deviations."""
    beside = results.by_stage(recipe, theirs, reading)
    leads = {
        stage: _lead(values, beside[stage])
        for stage, values in results.by_stage(recipe, ours).items()
        if beside.get(stage) and values
    }
    told = ", ".join(
        f"{stage} {lead.mean:+.2f}" + (f" ± {lead.deviation:.2f}" if lead.count > 1 else "")
        for stage, lead in leads.items()
    )
    return min(lead.mean for lead in leads.values()), told


def _lead(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Paired by seed if both have the same number, since they learned the same stream."""
    if len(ours) == len(theirs):
        return spread([one - other for one, other in zip(ours, theirs, strict=True)])
    return spread([fmean(ours) - fmean(theirs)])


def everyone(found: Mapping[str, list[float]]) -> str:
    """Means and standard deviations by name."""
    return ", ".join(f"{name} {shown(values)}" for name, values in found.items())
