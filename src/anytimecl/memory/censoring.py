"""Deletes what was forgotten or undone from the journal: examples, and labels only they had."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from anytimecl.memory.acts import KINDS, MERGE, RELABEL, RENAME, WITHDRAW, LabelHistory, act_of
from anytimecl.memory.contract import Event

if TYPE_CHECKING:
    from anytimecl.memory.store import Store


def censor(store: Store, examples: Collection[int], labels: Collection[str]) -> None:
    """Delete forgotten examples from the journal, and the labels that disappear with them."""
    entries = store.journal.of_kinds((*KINDS, "evict"))
    gone = set(examples)
    told = LabelHistory(filter(None, map(act_of, entries))).labels_of(gone, labels)
    known = store.vocabulary.counts().keys()
    for event in entries:
        texts = _texts(event.data)
        stale = texts - known if event.kind == "evict" else texts & told - known
        left = _without(event.data, gone, stale)
        if left != event.data:
            store.journal.write(event.number, event.kind, left)


def purge(store: Store, event: int) -> int:
    """Delete examples that were undone up to an event; returns their number.

    Label names that occur only in undone corrections are deleted, too.
    """
    if store.read_only:
        return 0
    wanted = "SELECT example, number FROM withdrawn WHERE number <= ?"
    with store.reading() as db:
        found = db.execute(wanted, (event,)).fetchall()
        undone = _undone_texts(store, event)
    if not found and not undone:
        return 0
    with store.writing():
        for entry in undone:
            store.journal.write(entry.number, entry.kind, entry.data)
        for example, number in found:
            store.remove(example)
            store.journal.write(number, WITHDRAW, {"example": example, "undoes": example})
        gone = {example for example, _ in found}
        for entry in store.journal.of_kinds((RELABEL, MERGE)):
            left = _without(entry.data, gone, set())
            if left != entry.data:  # without examples, an entry needs no label
                stale = set() if left["examples"] else _texts(left)
                store.journal.write(entry.number, entry.kind, _without(left, gone, stale))
    return len(found)


def _undone_texts(store: Store, event: int) -> list[Event]:
    """Undone entries and those that undid them, up to an event, without names not in use."""
    undoing = store.journal.undoing((RELABEL, MERGE, RENAME), event)
    known = store.vocabulary.counts().keys() if undoing else set()
    found = []
    for last in undoing:
        for each in (last, store.journal.entry(last.data["undoes"])):
            if each is not None and (stale := _texts(each.data) - known):
                found.append(each._replace(data=_without(each.data, set(), stale)))
    return found


def _texts(data: dict[str, Any]) -> set[str]:
    before = data.get("before", [])
    told = {*before} if isinstance(before, list) else {before}
    return told | ({data["label"]} if "label" in data else set())


def _without(data: dict[str, Any], gone: set[int], stale: set[str]) -> dict[str, Any]:
    """An entry's data without these examples and labels."""
    if "examples" in data:
        at = [i for i, example in enumerate(data["examples"]) if example not in gone]
        lists = ("examples", "keys", *(["before"] if isinstance(data.get("before"), list) else []))
        data = data | {name: [data[name][i] for i in at] for name in lists if name in data}
    if stale & _texts(data):
        data = {name: value for name, value in data.items() if name not in ("label", "before")}
    return data
