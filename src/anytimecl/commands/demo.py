"""`anytimecl demo`: learns two tasks from real images in a minute or two."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from anytimecl.errors import StoreError

RESULTS = "results.json"
MEMORY = "memory"

Out = Annotated[Path, typer.Option(help="Where the report, the plot and the memory go.")]
Quick = Annotated[bool, typer.Option("--quick", help="A quarter of the pictures.")]


def register(main: typer.Typer) -> None:
    """Add `anytimecl demo` to the program."""
    main.command("demo")(demo)


def demo(out: Out = Path("runs/demo"), quick: Quick = False) -> None:
    """Learn two tasks from real images, one picture at a time, and report what was measured."""
    from rich.console import Console

    console = Console()
    with console.status("Loading the model ..."):
        from anytimecl import backbone
        from anytimecl.demo import FULL, QUICK, report, tell
        from anytimecl.demo.terminal import Terminal

        model = backbone.load("embedded")
    story = tell(QUICK if quick else FULL, model, fresh_memory(out), Terminal(console))
    _write(out, story.numbers())
    (out / "accuracy.png").write_bytes(report.plot(story))
    (out / "report.html").write_text(report.html(story), encoding="utf-8")
    console.print(f"\nIt took {story.seconds:.0f} s. The report: {out / 'report.html'}")


def fresh_memory(out: Path) -> Path:
    """The memory's folder. An earlier demo's memory is deleted, any other is an error."""
    memory, results = out / MEMORY, out / RESULTS
    there = results if results.exists() else memory
    if there.exists() and not _is_a_demos(results):
        raise StoreError(f"There is a {there} that no demo made. Choose another folder with --out.")
    if memory.exists():
        shutil.rmtree(memory)
    out.mkdir(parents=True, exist_ok=True)
    _write(out, {})  # marks the folder as the demo's, in case it is interrupted
    return memory


def _is_a_demos(results: Path) -> bool:
    """Whether a demo wrote this file, to its end or only to mark its folder."""
    try:
        numbers = json.loads(results.read_bytes())
    except (OSError, ValueError):
        return False
    return numbers == {} or (isinstance(numbers, dict) and {"plan", "looks"} <= numbers.keys())


def _write(out: Path, numbers: object) -> None:
    (out / RESULTS).write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
