"""Digest of the code that determines results.

It covers the code reachable by imports when a recipe is run, as an AST: changes of comments,
docstrings and formatting do not matter, nor do changes of the service, the command line, the report
or documentation. Recipes and weights have digests of their own in each line of results.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]  # the folder of both packages
START = "anytimecl_lab.run"
OURS = ("anytimecl", "anytimecl_lab")
LENGTH = 12
# Progress, time limits, tables, and lines once written: results do not depend on them.
TELLING = {f"anytimecl_lab.{n}" for n in ("_clock", "_progress", "needs", "results", "table")}
NOT_DATA = {".py", ".pyc", ".typed", ".md"}
REPORT = {"paper.toml"}  # data that only reports read


@cache
def digest() -> str:
    """The digest of the current code."""
    found = hashlib.sha256()
    for name, file in sorted(deciding().items()):
        found.update(f"\n{name}\n".encode())
        found.update(meaning(file.read_text(encoding="utf-8")).encode())
    for file in data_files():
        found.update(f"\n{file.name}\n".encode() + file.read_bytes())
    return found.hexdigest()[:LENGTH]


@cache
def deciding() -> dict[str, Path]:
    """Files of our modules that a run may import, by module."""
    found: dict[str, Path] = {}
    todo = [START]
    while todo:
        name = todo.pop()
        file = _file(name) if name not in found else None
        if file is None or name in TELLING or name in OURS:  # packages: re-exports only
            continue
        found[name] = file
        todo += imports(file.read_text(encoding="utf-8"))
        todo.append(name.rpartition(".")[0])
    return found


def data_files() -> list[Path]:
    """Data files of those modules: class names, prompts, weights."""
    folders = {file.parent for file in deciding().values()}
    return sorted(
        file
        for folder in folders
        for file in folder.iterdir()
        if file.is_file() and file.suffix not in NOT_DATA and file.name not in REPORT
    )


def imports(source: str) -> Iterator[str]:
    """Our modules that some code imports, except for type checking only.

    >>> sorted(imports("import os\\ndef f():\\n    from anytimecl.tail import embed"))
    ['anytimecl.tail', 'anytimecl.tail.embed']
    """
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo += node.orelse
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        yield from (name for name in names if name.split(".")[0] in OURS)
        todo += ast.iter_child_nodes(node)


def meaning(source: str) -> str:
    """Code without comments, docstrings and formatting, equal for all versions of Python.

    >>> meaning('x = 1  # one') == meaning('"A number."\\nx   = 1')
    True
    >>> meaning("x = 1") == meaning("x = 2")
    False
    """
    return _told(ast.parse(source))


def _told(node: Any) -> str:
    if isinstance(node, list):
        return "[" + " ".join(map(_told, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and _is_text(body[0]):
        node.body = body[1:]  # type: ignore[attr-defined]
    # Skip empty fields, since newer versions of Python add some.
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    inner = " ".join(f"{name}={_told(value)}" for name, value in sorted(fields))
    return f"({type(node).__name__} {inner})"


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _file(name: str) -> Path | None:
    """The file of a module; None if the name is not a module."""
    place = ROOT.joinpath(*name.split("."))
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None
