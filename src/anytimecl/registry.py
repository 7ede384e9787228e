"""Registries of pluggable components, given as an object, a registered name, or name and options.

Each kind of component has a `Registry` that maps names to factories. Custom ones are added by
`register`, in a module that is imported (by the program, or named in `ANYTIMECL_IMPORT`), or by an
entry point in the group `anytimecl.KIND`. A memory stores the name and the options, never code, and
looks them up when it is opened again.
"""

from __future__ import annotations

import copy
import difflib
import importlib.util
import inspect
import json
import numbers
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, cast

from anytimecl.errors import PartError

T = TypeVar("T")
IMPORT = "ANYTIMECL_IMPORT"  # modules and files that register components, separated as in PATH


@dataclass(frozen=True)
class Named:
    """A choice of component: its name, its options and the object, if one was given.

    >>> Named("fifo") == Named("fifo", given=object())
    True
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    given: Any = field(default=None, compare=False, repr=False)

    def plain(self) -> str | dict[str, Any]:
        """The form that a memory stores."""
        return {"name": self.name, "options": dict(self.options)} if self.options else self.name


Choice: TypeAlias = str | Mapping[str, Any] | Named | T  # accepted wherever one is chosen


class Registry(Mapping[str, Callable[..., T]], Generic[T]):
    """Factories of the components of one kind, by name.

    Parameters
    ----------
    kind
        Name of the kind, for messages and entry points.
    known
        Built-in factories, called with the `context` and the options.
    context
        Number of positional arguments before the options.
    copies
        Whether a given object is copied by `make`, because it has state.

    Examples
    --------
    >>> shapes = Registry("shape", {"list": list, "range": range})
    >>> @shapes.register("pair")
    ... class Pair(list):
    ...     def __init__(self, left=0, *, right=1):
    ...         super().__init__([left, right])
    >>> shapes.make({"name": "pair", "options": {"right": 5}})
    [0, 5]
    >>> shapes.make({"name": "pair", "options": {"rihgt": 5}})
    Traceback (most recent call last):
    anytimecl.errors.PartError: There is no option 'rihgt': the shape 'pair' takes left, right. ...
    >>> shapes.make("pear")
    Traceback (most recent call last):
    anytimecl.errors.PartError: There is no shape 'pear'. There are: list, range, pair. ...
    """

    def __init__(
        self,
        kind: str,
        known: Mapping[str, Callable[..., T]],
        *,
        context: int = 0,
        copies: bool = False,
    ) -> None:
        self.kind = kind
        self._known: ChainMap[str, Callable[..., T]] = ChainMap({}, cast("Any", known))
        self._context, self._copies = context, copies
        self._installed: dict[str, Any] | None = None  # entry points, read on first use

    def register(
        self, name: str, make: Callable[..., T] | None = None
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Register a component: `register(name, make)`, or as a decorator.

        Parameters
        ----------
        name
            Its name in settings and memories.
        make
            A class or function, called with the context and the options.

        Returns
        -------
        callable
            The decorator.

        Raises
        ------
        PartError
            The name is taken by something else.
        """

        def put(given: Callable[..., T]) -> Callable[..., T]:
            there = self._known.get(name, given)
            if (there.__module__, _name_of(there)) != (given.__module__, _name_of(given)):
                raise PartError(f"There is a {self.kind} {name!r} already: choose another name.")
            self._known[name] = given  # the same again if its module was reloaded
            return given

        if make is not None:
            put(make)
        return put

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._known and name in self._outside():
            entry = self._outside()[name]
            try:
                self._known[name] = entry.load()
            except Exception as error:  # of the imported code
                told = f"The {self.kind} {name!r} cannot be imported from {entry.value}: {error!r}."
                raise PartError(told) from error
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._known.maps[1], *self._known.maps[0], *self._outside()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def named(self, choice: Choice[T]) -> Named:
        """Normalise and check a choice.

        Parameters
        ----------
        choice
            An object or the class of it, a registered name, or {"name": ..., "options": {...}}.

        Returns
        -------
        Named
            Its name, its options and the object.

        Raises
        ------
        PartError
            There is no such component, or it has no such option.
        """
        found = self.read(choice)
        if found.given is None or _is_factory(found.given):
            self._check(found)
        return found

    def make(self, choice: Choice[T], *context: Any) -> T:
        """Construct a component.

        Parameters
        ----------
        choice
            As `named` takes it.
        *context
            Positional arguments of the factory.

        Returns
        -------
        object
            A new one; for a given object, the object itself, or a copy if it has state.

        Raises
        ------
        PartError
            There is no such component, or it cannot be constructed with these options.
        """
        named = self.named(choice)
        if named.given is not None and not _is_factory(named.given):
            made: T = copy.deepcopy(named.given) if self._copies else named.given
            return made
        make = named.given or self[named.name]
        try:
            return make(*context, **named.options)
        except (ValueError, TypeError) as error:
            if not named.options or isinstance(error, PartError):
                raise
            told = f"The {self.kind} {named.name!r} cannot be made with {dict(named.options)}"
            raise PartError(f"{told}: {error}") from error

    def read(self, choice: Choice[T]) -> Named:
        """`named` without the check."""
        if isinstance(choice, Named):
            return choice
        if isinstance(choice, str):
            return Named(choice)
        if not isinstance(choice, Mapping):
            if choice is None or isinstance(choice, numbers.Number | bytes | list | tuple | set):
                raise self._no_choice(choice)
            options = {} if _is_factory(choice) else dict(getattr(choice, "options", {}))
            return Named(_name_of(choice), _plain(options), choice)
        unknown = sorted(choice.keys() - {"name", "options"})
        name, options = choice.get("name"), choice.get("options", {})
        if unknown or not isinstance(name, str) or not isinstance(options, Mapping):
            raise self._no_choice(choice)
        return Named(name, _plain(options))

    def _no_choice(self, choice: Any) -> PartError:
        forms = 'a name, {"name": ..., "options": {...}} or an object'
        return PartError(f"A {self.kind} is given as {forms}, not {choice!r}.")

    def _check(self, named: Named) -> None:
        if named.given is None and named.name not in self:
            near = difflib.get_close_matches(named.name, list(self), 1)
            known = f"There are: {', '.join(self)}" if len(self) else "None is registered"
            raise PartError(
                f"There is no {self.kind} {named.name!r}. {known}."
                f"{_meant(near)} One of your own is known once the module that registers it is "
                "imported (anytimecl --import MODULE)."
            )
        check_options(
            f"the {self.kind} {named.name!r}",
            named.options,
            named.given or self[named.name],
            self._context,
        )

    def _outside(self) -> dict[str, Any]:
        import_outside(os.environ.get(IMPORT, ""))
        if self._installed is None:
            found = entry_points(group=f"anytimecl.{self.kind}")
            self._installed = {each.name: each for each in found}
        return self._installed


_importing: set[str] = set()


def import_outside(modules: str) -> None:
    """Import the modules and files that register components, once per process."""
    if modules in _importing:
        return
    _importing.add(modules)  # first, since the modules may use a registry
    for module in filter(None, modules.split(os.pathsep)):
        try:
            _import(module)
        except Exception as error:  # of the imported code
            _importing.discard(modules)
            told = "there is no such file" if isinstance(error, FileNotFoundError) else repr(error)
            asked = f"{module} cannot be imported (--import or {IMPORT})"
            raise PartError(f"{asked}: {told}.") from error


def _import(module: str) -> None:
    path = Path(module)
    if path.suffix != ".py":
        importlib.import_module(module)
        return
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(module)
    made = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, made)  # for dataclasses and pickles in it
    spec.loader.exec_module(made)


def check_options(
    who: str, options: Mapping[str, Any], make: Callable[..., Any], context: int = 0
) -> None:
    """Raise PartError for an option that `make` does not take, or one that it lacks.

    >>> check_options("a pair", {}, lambda left, right=1: (left, right))
    Traceback (most recent call last):
    anytimecl.errors.PartError: a pair needs the option 'left'.
    """
    parameters = list(inspect.signature(make).parameters.values())
    free = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    takes = {each.name: each for each in free[context:] if not each.name.startswith("_")}
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        for name in sorted(options.keys() - takes.keys()):
            known = f"takes {', '.join(takes)}" if takes else "takes no options"
            hint = _meant(difflib.get_close_matches(name, list(takes), 1))
            raise PartError(f"There is no option {name!r}: {who} {known}.{hint}")
    for name, each in takes.items():
        if each.default is each.empty and name not in options:
            raise PartError(f"{who} needs the option {name!r}.")


def _meant(near: list[str]) -> str:
    return f" Is {near[0]!r} meant?" if near else ""


def _is_factory(choice: Any) -> bool:
    return isinstance(choice, type) or inspect.isfunction(choice)


def _name_of(choice: Any) -> str:
    name = getattr(choice, "name", None)
    if isinstance(name, str):
        return name
    return str(getattr(choice, "__qualname__", None) or type(choice).__name__)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(dict(options))))
    except (TypeError, ValueError) as error:
        raise PartError(f"Options are plain JSON values, not {dict(options)!r}: {error}") from error
