"""Corrections of labels: journal entries with enough data to be replayed and undone.

    relabel, merge   {"examples": [id, ...], "before": label or labels, "label": label}
    rename           {"before": label, "label": label}
    withdraw         {"example": id, "label": label}, a learned example is undone

An entry that undoes another also has its number, `undoes`. Those that write expect an open
transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anytimecl.errors import LabelTakenError, StoreError, UnknownLabelError
from anytimecl.memory.contract import Event
from anytimecl.memory.keys import RequestKey

if TYPE_CHECKING:
    from anytimecl.memory.store import Store

LEARN, RELABEL, MERGE, RENAME, WITHDRAW = "learn", "relabel", "merge", "rename", "withdraw"
KINDS = (RELABEL, MERGE, RENAME, WITHDRAW)
_FINAL = {"forget": "forgetting", "import": "an import", "rescue": "a rescue"}
_PAGE = 64  # entries read at once


class Act(NamedTuple):
    """A correction: examples, their labels before, and their label now."""

    number: int
    kind: str
    examples: tuple[int, ...]
    before: tuple[str, ...]  # [example]; for a rename, the old name
    label: str | None  # None: the example is removed
    keys: tuple[str | None, ...] | None = None  # previous keys, if they changed


def act_of(event: Event) -> Act | None:
    """The correction in an entry; None if it is of another kind, or its content was forgotten."""
    data = event.data
    if event.kind == WITHDRAW and "label" in data:
        return Act(event.number, event.kind, (data["example"],), (data["label"],), None)
    if event.kind not in KINDS or "label" not in data or "before" not in data:
        return None
    examples, before = tuple(data.get("examples", ())), data["before"]
    every = tuple(before) if isinstance(before, list) else (before,) * max(1, len(examples))
    keys = tuple(data["keys"]) if "keys" in data else None
    return Act(event.number, event.kind, examples, every, data["label"], keys)


class LabelHistory:
    """Labels of every example at any time since an event.

    >>> acts = [Act(5, "relabel", (1,), ("llama",), "okapi")]
    >>> history = LabelHistory(acts)
    >>> history.label_at(1, 4, "okapi"), history.label_at(1, 5, "okapi")
    ('llama', 'okapi')
    """

    def __init__(self, acts: Iterable[Act] = ()) -> None:
        self.acts = {act.number: act for act in acts}
        self._of: dict[int, list[tuple[int, str]]] = {}  # example -> events, and labels before them
        self._renamed: list[Act] = []
        for act in self.acts.values():
            if act.kind == RENAME:
                self._renamed.append(act)
            for example, before in zip(act.examples, act.before, strict=False):
                self._of.setdefault(example, []).append((act.number, before))

    def label_at(self, example: int, number: int, now: str | None) -> str | None:
        """An example's label just after event `number`, given its label now; None: it had none."""
        label, until = now, None
        for when, before in self._of.get(example, ()):
            if when > number:
                label, until = before, when
                break
        for act in reversed(self._renamed):
            if number < act.number and (until is None or act.number < until):
                label = act.before[0] if label == act.label else label
        return label

    def labels_of(self, examples: Collection[int], labels: Collection[str] = ()) -> set[str]:
        """Every label that a correction gave to or took from these examples.

        Includes `labels`, and the former names of all of them.
        """
        gone, found = set(examples), set(labels)
        for act in self.acts.values():
            for example, before in zip(act.examples, act.before, strict=False):
                if example in gone:
                    found |= {before, act.label or before}
        for act in reversed(self._renamed):
            if act.label in found:
                found.add(act.before[0])
        return found

    def touches(self, examples: Collection[int], labels: Collection[str]) -> bool:
        """Whether a correction concerns one of these."""
        about = {text for act in self.acts.values() for text in (act.label, *act.before)}
        return not about.isdisjoint(labels) or not self._of.keys().isdisjoint(examples)


def history(store: Store, after: int = 0) -> LabelHistory:
    """Corrections after an event; needs no transaction."""
    with store.reading():
        found = [act_of(event) for event in store.journal.of_kinds(KINDS, after)]
    return LabelHistory(act for act in found if act is not None)


def ids_at(store: Store, number: int) -> Iterator[tuple[int, str]]:
    """Every (id, label) as of just after event `number`, in order of arrival."""
    since = history(store, number)
    texts: dict[int, str] = {}
    page = [(0, 0)]
    while page:
        with store.reading():
            page = store.page(page[-1][0], withdrawn=True)
            if not {label for _, label in page} - {0} <= texts.keys():
                texts = store.vocabulary.texts()
        for example, label in page:
            if example > number:
                return
            was = since.label_at(example, number, texts.get(label))
            if was is not None:
                yield example, was


# Acts


def move(
    store: Store,
    examples: Sequence[int],
    label: str,
    *,
    kind: str = RELABEL,
    keys: Sequence[str | None] | None = None,
    undoes: int | None = None,
) -> int:
    """Relabel examples, with `keys` also change their keys; returns the entry's number."""
    before: list[str] = []
    had: list[str | None] = []
    for at, example in enumerate(examples):
        place = store.labelled(example)
        before.append(store.vocabulary.text(place.label))
        had.append(place.key)
        key = place.key if keys is None else keys[at]
        if key is not None and key != place.key and store.has_key(key) is not None:
            key = None  # another example has it now
        if isinstance(key, RequestKey):
            store.keys.add(key, example)  # in the same transaction, so that a retry finds it
        if place.key is not None and key != place.key:
            store.keys.add_former(place.key, example, before[-1])
        store.records.rewrite(example, store.vocabulary.add_example(label), key)
        store.vocabulary.drop_example(place.label)
    data: dict[str, Any] = {"examples": list(examples), "label": label}
    data["before"] = before[0] if len(set(before)) == 1 else before
    if keys is not None:
        data["keys"] = had
    return _note(store, kind, data, undoes)


def rename(store: Store, old: str, new: str, *, undoes: int | None = None) -> int:
    """Rename a label; returns the entry's number."""
    number = store.vocabulary.number(old)
    if number is None:
        raise UnknownLabelError(f"There is no example of {old!r}.")
    if store.vocabulary.number(new) is not None:
        raise LabelTakenError(f"There are examples of {new!r} already: merge the two labels.")
    store.vocabulary.rename(number, new)
    return _note(store, RENAME, {"before": old, "label": new}, undoes)


def withdraw(store: Store, example: int, *, undoes: int) -> int:
    """Undo the learning of an example, whose record stays until `purge`; returns the number."""
    place = store.records.place(example)
    text = store.vocabulary.text(place.label)
    store.records.rewrite(example, 0, None)
    store.vocabulary.drop_example(place.label)
    store.about.drop(example)
    number = _note(store, WITHDRAW, {"example": example, "label": text}, undoes)
    store.db.execute("INSERT INTO withdrawn VALUES (?, ?)", (example, number))
    return number


def _note(store: Store, kind: str, data: dict[str, Any], undoes: int | None) -> int:
    return store.note(kind, data if undoes is None else data | {"undoes": undoes})


# Undoing


def last_acts(store: Store, count: int) -> list[Event]:
    """The last changes that are not undone, newest first; StoreError if there are fewer."""
    found: list[Event] = []
    undone: set[int] = set()
    why = "nothing came before"
    for event in _backwards(store):
        if event.kind in _FINAL:
            why = f"{_FINAL[event.kind]} is final"
            break
        if "undoes" in event.data:
            undone.add(event.data["undoes"])
        elif event.number in undone or event.kind not in (LEARN, *KINDS):
            continue
        elif event.kind != LEARN and act_of(event) is None:
            why = "what it was about is forgotten"
            break
        elif not _evicted(store, event):
            found.append(event)
            if len(found) == count:
                return found
    acts = "1 act" if len(found) == 1 else f"{len(found)} acts"
    there = f"Only {acts} can be" if found else "Nothing can be"
    raise StoreError(f"{there} undone: {why}.")


def _backwards(store: Store) -> Iterator[Event]:
    """The journal, newest first."""
    before = store.last + 1
    while page := store.journal.backwards(before, _PAGE):
        yield from page
        before = page[-1].number


def _evicted(store: Store, event: Event) -> bool:
    """Whether all examples of a correction were evicted since."""
    act = act_of(event)
    return act is not None and act.kind != RENAME and not _left(store, act)


def _left(store: Store, act: Act) -> list[int]:
    return [example for example in act.examples if store.records.find(example) is not None]


def undo(store: Store, event: Event) -> None:
    """Undo the newest change that is not undone."""
    if event.kind == LEARN:
        withdraw(store, event.number, undoes=event.number)
        return
    act = act_of(event)
    assert act is not None
    if act.kind == RENAME:
        assert act.label is not None
        if store.vocabulary.number(act.label) is None:
            _note(store, RENAME, {}, act.number)  # all of its examples were evicted
        else:
            rename(store, act.label, act.before[0], undoes=act.number)
        return
    there = set(_left(store, act))
    for label in dict.fromkeys(act.before):
        at = [i for i, before in enumerate(act.before) if before == label]
        at = [i for i in at if act.examples[i] in there]
        if not at:
            continue
        keys = None if act.keys is None else [act.keys[i] for i in at]
        examples = [act.examples[i] for i in at]
        move(store, examples, label, kind=act.kind, keys=keys, undoes=act.number)
