"""Tables, claims and plots from made-up lines whose numbers are known."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from anytimecl.errors import StoreError
from anytimecl_lab.claims import NOT_RUN, claims
from anytimecl_lab.few_shot import curves
from anytimecl_lab.metrics import average, last, transfer
from anytimecl_lab.plots import plots
from anytimecl_lab.report import facts, write_report
from anytimecl_lab.results import Results, collect
from anytimecl_lab.table import Table
from anytimecl_lab.tables import paper, tables

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

    ours = find("at or above every baseline, task-incremental, in this project's setting")
    assert ours.verdict == "holds"
    assert "72.4 ± 0.2; the best baseline, LwF, 63.2 ± 0.0" in ours.evidence
    assert ours.model == "embedded"
    assert find("flexible inference, mix").verdict == "holds"
    assert find("equals the original").verdict == "holds"
    assert find("within 1.0 of joint").verdict == "holds"
    assert find("above its predecessor").verdict == NOT_RUN
    assert find("OCW is the best").verdict == NOT_RUN
    assert find("samplers").verdict == NOT_RUN


def test_both_settings_are_judged_at_every_stage() -> None:
    """The paper's is behind at the second stage, this project's never."""
    numbers = {
        "linear probe (AIM)": ((50.0, 60.0), (70.0, 70.0)),
        "AnytimeCL": ((55.0, 60.0), (75.0, 70.0)),
        "AnytimeCL (paper's setting)": ((55.0, 60.0), (69.0, 70.0)),
    }
    lines = [
        line(
            "data_incremental",
            "data-incremental",
            name,
            seed,
            stages(
                "",
                {"a": first[0] + seed * (3 if "paper" in name else 1), "b": first[1]},
                {"a": second[0], "b": second[1]},
            ),
            reading="",
        )
        for name, (first, second) in numbers.items()
        for seed in (0, 1)
    ]
    found = {c.text: c for c in claims(collect(lines)) if "at every stage, data-inc" in c.text}
    theirs, ours = (
        next(c for text, c in found.items() if setting in text)
        for setting in ("in the paper's setting", "in this project's setting")
    )
    assert theirs.verdict == "does not hold"
    assert theirs.evidence == "a +3.00 ± 0.71, b -0.50 ± 0.00"
    assert (ours.verdict, ours.evidence) == ("holds", "a +2.50 ± 0.00, b +2.50 ± 0.00")


def test_baselines_are_judged_with_all_their_variants() -> None:
    """AIM-Emb is the predecessor's, too, and is the better one here."""
    lines = [
        *(each for each in task_lines() if each["name"] in ("AnytimeCL", "original model")),
        *(
            line(
                "task_incremental",
                "task-incremental",
                "linear probe (AIM)",
                seed,
                stages("", {"a": 50, "b": 40}, {"a": 60, "b": 70}, mix={"n": 20.0}),
            )
            for seed in (0, 1)
        ),
    ]
    for each in lines:
        for result in each["results"]:
            if each["name"] == "linear probe (AIM)":
                for kind, questions in result["answers"].items():
                    for readings in questions.values():
                        readings["AIM-Emb"] = 95.0 if kind == "task" else 35.0
            if each["name"] == "AnytimeCL":  # its own blends are no baselines
                for question in result["answers"]["task"].values():
                    question |= {"original": 99.0, "tuned": 99.0}
    found = {claim.text: claim for claim in claims(collect(lines))}
    best = "; the best baseline, linear probe (AIM) AIM-Emb, "
    for part, verdict, evidence in (
        ("above linear probe (AIM) at every stage", "holds", "a +15.25 ± 0.35"),
        ("above linear probe (AIM) AIM-Emb at every stage", "does not hold", "a -34.75 ± 0.35"),
        ("at or above every baseline, task-incremental", "does not hold", best + "95.0 ± 0.0"),
        ("flexible inference, mix,", "does not hold", best + "35.0 ± 0.0"),
    ):
        [claim] = [claim for text, claim in found.items() if part in text]
        assert claim.verdict == verdict, part
        assert evidence in claim.evidence
    told = cells(named(tables(collect(lines)), "further variants of the baselines"))
    assert told == {"linear probe (AIM) AIM-Emb": ["95.0 ± 0.0"] * 3}


def test_transfer_is_judged_with_the_simple_rule_beside_it() -> None:
    own, rule = "AnytimeCL (paper's setting)", "tuned if all are seen"
    matrix = [{"a": 80.0, "b": 39.0}, {"a": 70.0, "b": 90.0}]
    told = stages("ocw", *matrix)
    for result, accuracy in zip(told, (40.0, 90.0), strict=True):
        for task, readings in result["answers"]["task"].items():
            readings[rule] = accuracy if task == "b" else 70.0
    plain = [{"a": 50.0, "b": 40.0}, {"a": 50.0, "b": 40.0}]
    lines = [
        line("mtil", "mtil", "original model", 0, stages("", *plain)),
        line("mtil", "mtil", own, 0, told, reading="ocw"),
    ]
    found = [claim for claim in claims(collect(lines)) if "Transfer in MTIL" in claim.text]
    assert [claim.verdict for claim in found] == ["does not hold", "holds"]
    assert rule in found[1].text


def test_union_as_the_predecessor_counts_it() -> None:
    """Two targets and one novel task: the novel one is half of it."""
    told = stages("", {"a": 1.0, "b": 1.0}, union={"a": 60.0, "b": 80.0, "n": 30.0})
    results = collect([line("t", "task-incremental", "LwF", 0, told, novel=["n"])])
    assert results.half_and_half("t", "LwF", "union") == [50.0]


def test_what_the_paper_prints_of_mtil_agrees_with_its_own_means() -> None:
    """Tables S2 and S3 as they are transcribed, against Table 1."""
    for name, matrix in paper()["mtil_matrix"].items():
        values = list(matrix.values())
        three = [transfer(values), average(values), last(values)]
        assert three == pytest.approx(paper()["mtil"][name], abs=0.06)


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


def few_shot_lines() -> list[Any]:
    """By name and by code, two tasks, one of them without two examples of a label."""
    accuracy = {  # labels, task -> method -> reading -> one number a stage
        ("name", "a"): {
            "AnytimeCL": {"gated": (60, 70, 80), "tuned": (99, 99, 99)},
            "GDA": {"": (50, 71, 79), "+ zero-shot": (55, 60, 65)},
            "kNN": {"": (61, 20, 20)},
        },
        ("name", "b"): {
            "AnytimeCL": {"gated": (30, 40), "tuned": (99, 99)},
            "GDA": {"": (20, 35), "+ zero-shot": (30, 30)},
            "kNN": {"": (10, 10)},
        },
        ("code", "a"): {
            "AnytimeCL": {"gated": (50, 60, 70), "tuned": (1, 1, 1)},
            "GDA": {"": (50, 50, 60), "+ zero-shot": (10, 10, 10)},
            "kNN": {"": (5, 5, 5)},
        },
    }
    found = []
    for (labels, task), methods in accuracy.items():
        for name, readings in methods.items():
            for seed in (0, 1):
                shots = ("1", "2", "all") if task == "a" else ("1", "all")
                results = [
                    {
                        "stage": at,
                        "name": shot,
                        "examples": 9,
                        "answers": {
                            "task": {task: {r: v[at] + 2 * seed for r, v in readings.items()}}
                        },
                    }
                    for at, shot in enumerate(shots)
                ]
                recipe = "few_shot" if labels == "name" else "few_shot-code"
                made = line(recipe, "few-shot", name, seed, results, labels=labels, subject=task)
                found.append(made)
    return found


def test_few_shot_beside_the_best_peer_by_hand() -> None:
    found = tables(collect(few_shot_lines()))
    table = named(found, "the best peer at each number of examples")
    assert table.headings == ["task, labels by", "1", "2", "all"]
    assert cells(table) == {
        "a, name": [
            "61.0 ± 1.4; kNN 62.0: -1.0",
            "71.0 ± 1.4; GDA 72.0: -1.0",
            "81.0 ± 1.4; GDA 80.0: +1.0",
        ],
        "a, code": [
            "51.0 ± 1.4; GDA 51.0: +0.0",
            "61.0 ± 1.4; GDA 51.0: +10.0",
            "71.0 ± 1.4; GDA 61.0: +10.0",
        ],
        "b, name": ["31.0 ± 1.4; GDA + zero-shot 31.0: +0.0", "–", "41.0 ± 1.4; GDA 36.0: +5.0"],
    }
    means = cells(named(found, "every method, mean over points"))
    assert means["AnytimeCL gated"] == ["54.3 ± 1.4", "56.0 ± 1.4", "61.0 ± 1.4", "71.0 ± 1.4"]
    assert means["GDA"] == ["48.0 ± 1.4", "51.0 ± 1.4", "58.0 ± 1.4", "61.0 ± 1.4"]
    everyone = named(found, "a, labels by code")
    assert cells(everyone)["GDA + zero-shot"] == ["11.0 ± 1.4"] * 3
    assert len(found) == 2 + 3  # told once, not again for the codes


def test_calibration_and_none_of_these_have_tables() -> None:
    lines = few_shot_lines()
    assert not [t for t in tables(collect(lines)) if "calibration" in t.title or "none" in t.title]
    for each in lines:
        for result in each["results"]:
            result["answers"]["calibration"] = {
                each["subject"]: dict.fromkeys(result["answers"]["task"][each["subject"]], 4.0)
            }
            if each["name"] == "kNN" and result["name"] == "1":
                told = {"AUROC": 98.0, "own refused": 1.0 + each["seed"], "foreign refused": 97.0}
                result["answers"]["none-of-these"] = {"cars": told}
    found = tables(collect(lines))
    assert cells(named(found, "expected calibration error")) == {
        "a, name": ["4.0 ± 0.0"] * 3,
        "a, code": ["4.0 ± 0.0"] * 3,
        "b, name": ["4.0 ± 0.0", "–", "4.0 ± 0.0"],
    }
    table = named(found, "none of these")
    assert table.headings == ["method", "task, labels by", "1"]
    assert [row[:2] for row in table.rows] == [
        ["kNN", "a against cars, name"],
        ["kNN", "a against cars, code"],
        ["kNN", "b against cars, name"],
    ]
    told = "AUROC 98.0 ± 0.0; own refused 1.5 ± 0.7; foreign refused 97.0 ± 0.0"
    assert table.rows[0][2] == told
    assert cells(named(found, "the best peer"))["b, name"][1] == "–"  # accuracies alone


def test_a_peer_is_compared_by_the_same_seeds() -> None:
    """One that lacks a seed, perhaps an unlucky one, is no best peer."""
    lines = [
        each
        for each in few_shot_lines()
        if (each["name"], each["seed"], each["subject"]) != ("kNN", 0, "a")
    ]
    told = cells(named(tables(collect(lines)), "the best peer"))
    assert told["a, name"][0] == "61.0 ± 1.4; GDA + zero-shot 56.0: +5.0"


def test_few_shot_claims_by_hand() -> None:
    told = {claim.text: claim for claim in claims(collect(few_shot_lines()))}
    [near] = [claim for text, claim in told.items() if "at most 0.7 below" in text]
    assert near.verdict == "does not hold"
    assert near.evidence == "2 of 5 points are further below; worst: -1.00 at a, name, 1"
    [above] = [claim for text, claim in told.items() if "3 points above" in text]
    assert above.verdict == "holds"
    assert above.evidence == f"{((10 - 1 + 10) + (0 + 10)) / 5:+.2f} to GDA"


def test_few_shot_is_drawn_by_the_best_reading_of_each_peer() -> None:
    results = collect(few_shot_lines())
    drawn = curves(results, "few_shot")
    assert list(drawn) == ["few_shot, a", "few_shot, b"]
    assert list(drawn["few_shot, a"]) == ["name", "code"]
    assert drawn["few_shot, a"]["name"]["GDA"] == {"1": 51, "2": 72, "all": 80}
    assert drawn["few_shot, a"]["name"]["AnytimeCL"] == {"1": 61, "2": 71, "all": 81}
    assert curves(results, "few_shot-code") == {}
    svgs = plots(results)
    assert list(svgs) == [f"few_shot, {t}: accuracy against examples a label" for t in ("a", "b")]
    assert svgs["few_shot, a: accuracy against examples a label"].count("labels by") == 2


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
    told = [line("r", "mtil", "AnytimeCL", seed, [], digest=f"mark {seed}") for seed in (0, 1)]
    (said,) = [fact for fact in facts(collect(told), 0) if "versions of the method" in fact]
    assert "2 versions" in said
    assert "mark 0 (1 lines: r)" in said


def test_a_report_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="anytimecl bench run"):
        write_report([tmp_path / "none.jsonl"], tmp_path)
