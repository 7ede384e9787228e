"""One name, one sense: no two classes of the library and the lab are called alike."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
# A client has the service's own words: each is the other end of the same message.
BOTH_ENDS = {"Job", "Lesson", "Record", "Taught"}


def public_classes(source: Path) -> dict[str, list[str]]:
    """Every public class, and the modules that define one of that name."""
    found = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return found


def test_no_name_has_two_senses() -> None:
    classes = public_classes(SOURCE)
    assert len(classes) > 200
    twice = {name: where for name, where in classes.items() if len(where) > 1}
    ends = {name: twice.pop(name) for name in BOTH_ENDS & twice.keys()}
    assert not twice
    assert all("anytimecl.client._told" in where and len(where) == 2 for where in ends.values())


def test_a_name_that_is_used_twice_is_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("class Answer: ...\nclass _Own: ...\n")
    assert public_classes(tmp_path) == {"Answer": ["one", "two"]}
