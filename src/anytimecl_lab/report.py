"""A report of results: Markdown, CSV, and one self-contained HTML page with the plots."""

from __future__ import annotations

import csv
import html
from collections.abc import Sequence
from pathlib import Path

from anytimecl.errors import StoreError
from anytimecl_lab.claims import claims
from anytimecl_lab.plots import plots
from anytimecl_lab.results import Results, collect, read_lines
from anytimecl_lab.table import Table
from anytimecl_lab.tables import csv_rows, tables

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0;font-size:.85rem}"
    "th,td{padding:.25rem .6rem;border-bottom:1px solid #8884;text-align:left}"
    "svg{max-width:100%;height:auto;background:#fff}"
)


def write_report(
    files: Sequence[Path],
    out: Path,
    title: str = "Benchmark report",
    notes: str = "",
    *,
    mixed: bool = False,
    group: str | None = None,
) -> list[Path]:
    """Write a report of some files of results; returns the files written.

    `notes` is a text to insert, in paragraphs separated by empty lines. Lines from several versions
    of the method or the lab are an error unless `mixed`. A report is for one `group` of data sets
    and models, since tables are keyed by recipe.
    """
    lines = [line for file in files for line in read_lines(file)]
    lines = [line for line in lines if group in (None, line.get("group"))]
    groups = sorted({str(line["group"]) for line in lines if "error" not in line})
    if len(groups) > 1:
        raise StoreError(
            f"These results are of {len(groups)} groups, {', '.join(groups)}: a report is of one. "
            "Choose it: --group NAME."
        )
    results = collect(lines)
    if not results.lines:
        told = ", ".join(str(file) for file in files)
        raise StoreError(f"There are no results in {told}. Make some with `anytimecl bench run`.")
    if len(results.digests()) > 1 and not mixed:
        raise StoreError(
            f"These results come from {versions(results)} Run the older ones again, or allow the "
            "mixture: --mixed."
        )
    failed = [line for line in lines if "error" in line]
    out.mkdir(parents=True, exist_ok=True)
    every = [claim_table(results), *tables(results)]
    about = facts(results, len(failed)) + [p.strip() for p in notes.split("\n\n") if p.strip()]
    (out / "report.md").write_text(markdown(title, about, every), encoding="utf-8")
    (out / "report.html").write_text(page(title, about, every, plots(results)), encoding="utf-8")
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(csv_rows(results))
    return [out / name for name in ("report.md", "report.html", "results.csv")]


def facts(results: Results, failed: int) -> list[str]:
    """Hardware, dates and versions of the results."""
    lines = list(results.lines.values())
    devices = sorted({line["hardware"]["device"] for line in lines})
    packages = {f"{k} {v}" for x in lines for k, v in x["versions"].items() if k != "code"}
    days = sorted({line["when"][:10] for line in lines})
    seeds = sorted({line["seed"] for line in lines})
    told = [
        f"{len(lines):,} runs on {', '.join(devices)}, {days[0]} to {days[-1]}, seeds "
        f"{', '.join(map(str, seeds))}; {sum(line['seconds'] for line in lines):,.0f} s in all.",
        f"Model: {', '.join(sorted({line['backbone'] for line in lines}))}. With: "
        f"{', '.join(sorted(packages))}.",
    ]
    told.append(f"The lines come from {versions(results)}")
    if any(line["validation"] for line in lines):
        told.append("Asked about held-out training images, not about test images.")
    if failed:
        told.append(f"{failed} runs failed at least once; the lines of results say why.")
    return told


def versions(results: Results) -> str:
    """Versions of the code that determines results, with numbers of lines and recipes."""
    marks = results.digests()
    if len(marks) == 1:
        return f"one version of the method and the lab, {next(iter(marks))}."
    each = (
        f"{mark} ({sum(count.values())} lines: {', '.join(sorted(count))})"
        for mark, count in marks.items()
    )
    return f"{len(marks)} versions of the method or the lab: {'; '.join(each)}."


def claim_table(results: Results) -> Table:
    """Which of the paper's claims hold."""
    rows = [[each.text, each.verdict, each.evidence, each.model] for each in claims(results)]
    headings = ["claim", "verdict", "numbers, mean and deviation over seeds", "model"]
    return Table("Which claims hold here", headings, rows)


def markdown(title: str, about: Sequence[str], every: Sequence[Table]) -> str:
    """The report as Markdown."""
    parts = [f"# {title}\n", *(f"{each}\n" for each in about)]
    return "\n".join([*parts, *(table.markdown() for table in every)])


def page(title: str, about: Sequence[str], every: Sequence[Table], drawn: dict[str, str]) -> str:
    """The report as a self-contained HTML page."""
    parts = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{html.escape(each)}</p>" for each in about)]
    first, *rest = every
    parts.append(_html(first))
    parts += [f"<h2>{html.escape(name)}</h2>\n{svg}" for name, svg in drawn.items()]
    parts += [_html(table) for table in rest]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _html(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "\n".join([row(table.headings, "th"), *(row(cells, "td") for cells in table.rows)])
    note = f"<p>{html.escape(table.note)}</p>" if table.note else ""
    return f"<h2>{html.escape(table.title)}</h2>\n<table>\n{body}\n</table>\n{note}"
