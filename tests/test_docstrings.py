"""Every public name says in numpydoc form what it takes, gives and raises, with an example."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import anytimecl

CLASSES = {
    name: found
    for name in sorted(anytimecl.__all__)
    if inspect.isclass(found := getattr(anytimecl, name))
}
# Of dataclasses and the standard library: what they take is said by the class.
INHERITED_FROM = (object, tuple, int, Exception, BaseException)


def public_methods() -> Iterator[Any]:  # of `pytest.param`
    """Functions that a user may call, those of base classes included."""
    for name, kind in CLASSES.items():
        for own in sorted(dir(kind)):
            found = inspect.getattr_static(kind, own)
            function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            foreign = any(own in vars(base) for base in INHERITED_FROM)
            if own.startswith("_") or foreign or not inspect.isfunction(function):
                continue
            yield pytest.param(function, id=f"{name}.{own}")


def sections(text: str) -> dict[str, str]:
    """What stands under each heading of a docstring."""
    parts = re.split(r"^(\w+)\n-+\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def entries(section: str) -> list[str]:
    """The names that a section explains, each with a text."""
    found = re.findall(r"^(\S[^\n]*)\n(    .*\S)", section, flags=re.MULTILINE)
    assert len(found) == len(re.findall(r"^\S", section, flags=re.MULTILINE)), section
    return [name for head, _ in found for name in head.split(" : ")[0].split(", ")]


def parameters(function: Any) -> list[str]:
    """As `help` shows them; what stands for any number has its stars."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = inspect.signature(function).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in given if p.name not in ("self", "cls")]


def raised(function: Any) -> set[str]:
    """Errors that the function's own lines raise by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    return {
        node.func.id for node in found if isinstance(node, ast.Call) and hasattr(node.func, "id")
    }


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_an_example_and_says_what_it_is_made_of(name: str) -> None:
    kind = CLASSES[name]
    found = sections(kind.__doc__ or "")
    assert ">>> " in found["Examples"]  # run with all other doctests
    if not issubclass(kind, Exception) and not getattr(kind, "_is_protocol", False):
        listed = entries(found.get("Parameters", "") + found.get("Attributes", ""))
        assert listed == parameters(kind)


@pytest.mark.parametrize("function", list(public_methods()))
def test_a_method_says_what_it_takes_gives_and_raises(function: Any) -> None:
    assert function.__doc__
    if said := re.fullmatch(r"`Client\.(\w+)`, awaited\.", function.__doc__):
        assert said[1] == function.__name__
        own, other = (parameters(each) for each in (function, getattr(anytimecl.Client, said[1])))
        assert {*own} - {"**options"} <= {*other}  # which is checked itself
        return
    found = sections(function.__doc__)
    assert entries(found.get("Parameters", "")) == parameters(function)
    gives = inspect.signature(function).return_annotation not in ("None", None)
    assert gives == bool({"Returns", "Yields"} & found.keys())
    assert raised(function) <= {*entries(found.get("Raises", ""))}
    assert found.keys() <= {"Parameters", "Returns", "Yields", "Raises", "Examples", "Notes"}


def test_the_check_finds_what_is_missing() -> None:
    def taking(one: int, **others: int) -> int:
        raise ValueError(f"{one} {others}")

    assert parameters(taking) == ["one", "**others"]
    assert raised(taking) == {"ValueError"}
    found = sections("Do.\n\nParameters\n----------\none\n    The first.\n")
    assert entries(found["Parameters"]) == ["one"]
