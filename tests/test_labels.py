"""One spelling for one label, and a clear answer for text that cannot be one."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytimecl.errors import LabelError
from anytimecl.labels import LONGEST, clean_label, clean_labels, teachable, visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat", "cat"),
        ("  tabby \t\n cat ", "tabby cat"),
        ("cafe\u0301", "café"),
        ("non\u00a0breaking", "non breaking"),
        ("Großer Panda 🐼", "Großer Panda 🐼"),
        ("x" * LONGEST, "x" * LONGEST),
        ("x" + " " * 500, "x"),
        ("{}", "{}"),
    ],
)
def test_one_spelling(text: str, expected: str) -> None:
    assert clean_label(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty: ''"),
        (" \t ", r"is empty: ' \\t '"),
        (None, "not text but NoneType: None"),
        (7, "not text but int: 7"),
        (b"cat", "not text but bytes: b'cat'"),
        ("a\x00b", r"control characters: 'a\\x00b'"),
        ("a\x7fb", "control characters"),
        ("a\udcffb", r"bytes that are not UTF-8: 'a\\udcffb'"),
        ("x" * (LONGEST + 1), f"has {LONGEST + 1} characters"),
    ],
)
def test_refusals_name_the_offender(text: Any, says: str) -> None:
    with pytest.raises(LabelError, match=f"The label .*{says}"):
        clean_label(text)
    with pytest.raises(LabelError, match=f"The label at position 1 .*{says}"):
        clean_labels(["fine", text])


def test_errors_stay_short() -> None:
    with pytest.raises(LabelError) as caught:
        clean_label("\x00" * 10_000_000)
    assert len(str(caught.value)) < 200


@given(st.text())
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    try:
        label = clean_label(text)
    except LabelError:
        return
    assert clean_label(label) == label
    assert unicodedata.is_normalized("NFC", label)
    label.encode()  # can be stored


@given(st.lists(st.sampled_from(["cat", " cat", "dog", "Dog", "a  b", "a b"]), min_size=1))
def test_order_is_kept_and_doubles_are_one(texts: list[str]) -> None:
    slow: list[str] = []
    for text in texts:
        if clean_label(text) not in slow:
            slow.append(clean_label(text))
    assert clean_labels(texts) == slow
    assert clean_labels(iter(texts)) == slow


def test_a_text_is_not_a_list() -> None:
    with pytest.raises(LabelError, match=r"write \['cat'\] instead of 'cat'"):
        clean_labels("cat")
    with pytest.raises(LabelError, match="not as int: 5"):
        clean_labels(5)  # type: ignore[arg-type]
    with pytest.raises(LabelError, match="no labels"):
        clean_labels([])


def test_there_is_a_limit() -> None:
    assert len(clean_labels(map(str, range(10)), limit=10)) == 10
    assert len(clean_labels(["same"] * 20, limit=10)) == 1
    with pytest.raises(LabelError, match="more than 10 labels"):
        clean_labels(map(str, range(11)), limit=10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\ufeffcat", "cat"),
        ("c\u200bat\u200b ", "cat"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("\u2060", ""),
    ],
)
def test_what_cannot_be_seen_is_kept_and_can_be_told(text: str, expected: str) -> None:
    assert visible(clean_label(text)) == expected
    assert clean_label(text) == text.strip()  # memories hold such labels


def test_a_label_that_nobody_can_see_cannot_be_taught() -> None:
    with pytest.raises(LabelError, match=r"nothing that can be seen: '\\u200b\\ufeff'"):
        teachable("\u200b\ufeff")
