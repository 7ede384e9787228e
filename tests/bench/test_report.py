"""Tables, claims and plots from made-up lines whose numbers are known."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from anytimecl.bench.claims import NOT_RUN, claims
from anytimecl.bench.plots import plots
from anytimecl.bench.report import facts, write_report
from anytimecl.bench.results import Results, collect
from anytimecl.bench.tables import Table, paper, tables
from anytimecl.errors import StoreError

ABOUT: dict[str, Any] = {
    "group": "subsets",
    "backbone": "embedded",
    "validation": False,
    "novel": [],
    "options": {},
    "codec": None,
    "components": None,
    "when": "2026-01-01T00:00:00+00:00",
    "seconds": 1.5,
    "hardware": {"device": "CPU", "processor": "x", "cores": 2},
    "versions": {"anytimecl": "0"},
}


def line(recipe: str, scenario: str, name: str, seed: int, results: Any, **more: Any) -> Any:
    places = {"original model": 0, "AnytimeCL": 1, "joint training": 3}
    return {
        **ABOUT,
        "recipe": recipe,
        "scenario": scenario,
        "name": name,
        "method": "online" if name == "AnytimeCL" else "lwf",
        "reading": "gated" if name == "AnytimeCL" else "",
        "place": places.get(name, 2),
        "subject": "all",
        "tasks": ["a", "b"],
        "seed": seed,
        "results": results,
        **more,
    }


def stages(reading: str, *values: dict[str, float], **final: dict[str, float]) -> Any:
    """One result a stage; `final` are other kinds of question after the last."""
    told = [
        {
            "stage": at,
            "name": ("a", "b")[at],
            "examples": at + 1,
            "answers": {"task": {task: {reading: value} for task, value in each.items()}},
        }
        for at, each in enumerate(values)
    ]
    for kind, questions in final.items():
        answers = {q: {reading: value} for q, value in questions.items()}
        told[-1]["answers"][kind.replace("_", "-")] = answers  # type: ignore[index]
    return told


def task_lines() -> list[Any]:
    """Three methods and joint training, two seeds, two tasks."""
    found = []
    for seed in (0, 1):
        numbers = {
            "original model": ("", {"a": 50, "b": 40}, {"a": 50, "b": 40}, 30),
            "AnytimeCL": ("gated", {"a": 80 + seed, "b": 40}, {"a": 79, "b": 90}, 30),
            "LwF": ("", {"a": 85, "b": 20}, {"a": 60, "b": 88}, 10),
            "joint training": ("", {"a": 79.5, "b": 91}, {"a": 79.5, "b": 91}, 20),
        }
        for name, (reading, first, second, novel) in numbers.items():
            flexible = {kind: {"n": float(novel)} for kind in ("zero_shot", "union", "mix")}
            results = stages(reading, first, second, **flexible)
            found.append(line("task_incremental", "task-incremental", name, seed, results))
    return found


def named(found: list[Table], part: str) -> Table:
    return next(table for table in found if part in table.title)


def cells(table: Table) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in table.rows}


@pytest.fixture
def results() -> Results:
    return collect(task_lines())


def test_stages_by_hand(results: Results) -> None:
    table = named(tables(results), "accuracy over all tasks after each stage")
    assert table.headings == ["method", "a", "b", "mean"]
    told = cells(table)
    assert told["original model"] == ["45.0 ± 0.0", "45.0 ± 0.0", "45.0 ± 0.0"]
    assert told["AnytimeCL"] == ["60.2 ± 0.4", "84.5 ± 0.0", "72.4 ± 0.2"]
    assert list(told) == ["original model", "AnytimeCL", "LwF", "joint training"]


def test_forgetting_by_hand(results: Results) -> None:
    told = cells(named(tables(results), "what is kept"))
    assert told["AnytimeCL"] == ["79.0 ± 0.0", "1.5 ± 0.7"]
    assert told["LwF"] == ["60.0 ± 0.0", "25.0 ± 0.0"]


def test_mtil_by_hand() -> None:
    matrix = [{"a": 80.0, "b": 40.0}, {"a": 70.0, "b": 90.0}]
    lines = [line("mtil", "mtil", "LwF", 0, stages("", *matrix))]
    told = cells(named(tables(collect(lines)), "Transfer, Avg and Last"))
    assert told["LwF"] == ["40.0", "70.0", "80.0", "56.9", "64.7", "74.6"]


def test_claims_by_hand(results: Results) -> None:
    told = {claim.text: claim for claim in claims(results)}

    def find(part: str) -> Any:
        return next(claim for text, claim in told.items() if part in text)

    assert find("in task-incremental").verdict == "holds"
    assert "72.38; the best baseline, LwF, 63.25" in find("in task-incremental").evidence
    assert find("flexible inference, mix").verdict == "holds"
    assert find("equals the original").verdict == "holds"
    assert find("within 1.0 of joint").verdict == "holds"
    assert find("in data-incremental").verdict == NOT_RUN
    assert find("OCW is the best").verdict == NOT_RUN
    assert find("samplers").verdict == NOT_RUN


@pytest.mark.parametrize(
    ("kind", "value", "part"),
    [
        ("zero-shot", 30.01, "equals the original"),
        ("task", 77.0, "within 1.0 of joint"),
        ("union", 9.0, "flexible inference, union"),
    ],
)
def test_claims_that_do_not_hold_are_said_so(kind: str, value: float, part: str) -> None:
    lines = task_lines()
    for each in lines:
        if each["name"] == "AnytimeCL":
            answers = each["results"][-1]["answers"][kind]
            answers[next(iter(answers))] = {"gated": value}
    found = claims(collect(lines))
    [claim] = [claim for claim in found if part in claim.text]
    assert claim.verdict == "does not hold"


def test_a_seed_that_lacks_a_task_is_left_out() -> None:
    lines = [
        line("data_incremental", "data-incremental", "LwF", seed, stages("", {task: value}))
        | {"subject": task}
        for seed, task, value in ((0, "a", 50.0), (0, "b", 70.0), (1, "a", 10.0))
    ]
    assert collect(lines).by_stage("data_incremental", "LwF") == {"a": [60.0]}


def test_a_cell_that_was_run_again_counts_once() -> None:
    old, new = (
        line("mtil", "mtil", "LwF", 0, stages("", {"a": value, "b": 1.0})) for value in (1.0, 9.0)
    )
    found = collect([old, {**old, "error": "gone"}, new])
    assert found.final("mtil", "LwF", "task", None, "a") == [9.0]


def test_codecs_stand_beside_the_papers() -> None:
    lines = [
        line(
            "codecs",
            "data-incremental",
            name,
            0,
            [
                {
                    "stage": 0,
                    "name": "100 %",
                    "examples": 9,
                    "answers": {"task": {task: {"tuned": value, "gated": value + 1}}},
                }
            ],
            subject=task,
            tasks=["cifar100"],
            codec="pca-image",
            bytes=22_400.0,
            method="online",
            reading="gated",
        )
        for name, task, value in (("pca-image 3", "cifar100", 70.0), ("vq", "cifar100", 60.0))
    ]
    timing = {**lines[0], "name": "image", "ms": 44.44, "bytes": 10_900.0}
    results = collect([*lines, timing])
    told = cells(named(tables(results), "what is kept of an example"))
    assert told["pca-image 3"] == ["22.4", "–", "70.0", "71.0", "12.9", "–", "75.2 ± 0.2"]
    assert told["image"] == ["10.9", "44.4", "–", "–", "150.5", "43.9", "77.8"]
    assert "<svg" in plots(results)["codecs: cifar100, accuracy against size"]


def test_the_papers_figures_are_of_methods_that_recipes_name() -> None:
    names = {name for part in paper().values() for name in part}
    folder = Path(__file__).parents[2] / "recipes" / "paper"
    text = "".join(file.read_text() for file in folder.glob("*.toml"))
    assert all(f'name = "{name}"' in text for name in names - {"image"})


def test_a_report_is_three_files(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    failed = {"recipe": "x", "error": "gone"}
    file.write_text("".join(json.dumps(each) + "\n" for each in [*task_lines(), failed]))
    written = write_report([file], tmp_path / "report", "A <title>")
    assert [each.name for each in written] == ["report.md", "report.html", "results.csv"]
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "A &lt;title&gt;" in page
    for other in ('href="http', 'src="', "<link", "<script", "@import"):
        assert other not in page  # it needs nothing else
    assert "1 runs failed" in (tmp_path / "report" / "report.md").read_text()
    with (tmp_path / "report" / "results.csv").open() as rows:
        found = list(csv.DictReader(rows))
    assert len(found) == 8 * (4 + 3)
    again = write_report([file], tmp_path / "again", "A <title>")
    assert [each.read_bytes() for each in again] == [each.read_bytes() for each in written]


def test_a_report_says_what_its_maker_has_to_say(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in task_lines()))
    page, text = "report.html", "report.md"
    write_report([file], tmp_path, notes="Below <all>,\nand why.\n\n\nTwice.\n")
    assert "<p>Below &lt;all&gt;,\nand why.</p>\n<p>Twice.</p>" in (tmp_path / page).read_text()
    assert "\nBelow <all>,\nand why.\n\nTwice.\n" in (tmp_path / text).read_text()


def test_lines_of_two_versions_of_the_code_are_told_as_such() -> None:
    told = [
        line("r", "mtil", "AnytimeCL", seed, [], versions={"code": f"{seed}"}) for seed in (0, 1)
    ]
    assert "The lines come from 2 versions of the code." in facts(collect(told), 0)


def test_a_report_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="anytimecl bench run"):
        write_report([tmp_path / "none.jsonl"], tmp_path)
