"""Prompts, their mean, and a cache that can be lost, damaged or shared but never wrong."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone.spec import Preprocess, Spec, TailSpec
from anytimecl.backbone.text import (
    PROMPTS_AT_ONCE,
    LabelCache,
    cache_folder,
    check_templates,
    embed_labels,
    prompts,
)
from anytimecl.errors import LabelError, ModelError

DIM = 6


class Counting:
    """A text side whose vectors follow from the text alone, and which counts its work."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.largest = 0

    def __call__(self, texts: Sequence[str]) -> Tensor:
        self.seen += texts
        self.largest = max(self.largest, len(texts))
        return torch.stack([vector_of(text) for text in texts])


def vector_of(text: str) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])
    vector = torch.randn(DIM, generator=torch.Generator().manual_seed(seed))
    return vector / vector.norm()


def slow(label: str, templates: Sequence[str]) -> Tensor:
    total = torch.zeros(DIM, dtype=torch.float64)
    for template in templates:
        before, after = template.split("{}")
        total += vector_of(before + label + after)
    return total / total.norm()


def embed(
    text: Counting, cache: LabelCache, labels: Sequence[str], *templates: str, model: str = "m"
) -> Tensor:
    return embed_labels(text, cache, model, DIM, labels, templates or ("{}",))


def test_prompts_leave_other_braces_alone() -> None:
    assert prompts("{x} {}", ["a {} {0}", "{}"]) == ["a {x} {} {0}", "{x} {}"]


@pytest.mark.parametrize("templates", [[], "a {}", ["none"], ["{} {}"], [3], ["{}", "{0}"]])
def test_bad_templates_are_refused(templates: Any) -> None:
    with pytest.raises(LabelError):
        check_templates(templates)


def test_vectors_are_the_normalised_mean_over_templates() -> None:
    templates = ("a photo of a {}.", "{}", "itap of {}")
    labels = ["cat", "dog", " cat ", "great  white shark"]
    got = embed(Counting(), LabelCache(), labels, *templates)
    for label, vector in zip(["cat", "dog", "cat", "great white shark"], got, strict=True):
        assert (vector - slow(label, templates)).abs().max() < 1e-6
    assert got.dtype == torch.float32
    assert embed(Counting(), LabelCache(), []).shape == (0, DIM)


def test_a_label_is_embedded_once() -> None:
    text, cache = Counting(), LabelCache()
    first = embed(text, cache, ["cat", "dog", "cat"])
    again = embed(text, cache, ["dog", "cat"])
    assert text.seen == ["cat", "dog"]
    assert torch.equal(first[:2].flip(0), again)
    first.zero_()  # what was given away is not what is kept
    assert torch.equal(embed(text, cache, ["dog", "cat"]), again)
    embed(text, cache, ["cat"], "a {}")
    embed(text, cache, ["cat"], model="other")
    assert text.seen == ["cat", "dog", "a cat", "cat"]


def test_many_labels_need_little_beside_the_result() -> None:
    text, cache = Counting(), LabelCache(in_ram=50)
    labels = [f"label {number}" for number in range(3 * PROMPTS_AT_ONCE)]
    got = embed(text, cache, labels, "a {}", "the {}", "{}")
    assert text.largest <= PROMPTS_AT_ONCE
    assert len(cache._ram) == 50
    for number in (0, 1023, 1024, len(labels) - 1):
        expected = slow(labels[number], ["a {}", "the {}", "{}"])
        assert (got[number] - expected).abs().max() < 1e-6


def test_a_broken_text_side_is_refused() -> None:
    for bad in (torch.ones(1, DIM + 1), torch.full((1, DIM), torch.nan), torch.ones(2, DIM)):
        with pytest.raises(ModelError, match="text side"):
            embed_labels(lambda texts, bad=bad: bad, LabelCache(), "m", DIM, ["cat"], ["{}"])


def test_labels_are_checked() -> None:
    with pytest.raises(LabelError, match="position 1"):
        embed(Counting(), LabelCache(), ["cat", ""])
    with pytest.raises(LabelError, match=r"write \['cat'\]"):
        embed(Counting(), LabelCache(), "cat")


def test_the_file_outlives_the_process(tmp_path: Path) -> None:
    file, text = tmp_path / "deep" / "labels.sqlite3", Counting()
    labels = [f"label {number}" for number in range(1200)]
    first = embed(text, LabelCache(file), labels, "a {}")
    fresh = Counting()
    assert torch.equal(embed(fresh, LabelCache(file), labels, "a {}"), first)
    assert fresh.seen == []
    embed(fresh, LabelCache(file), ["label 0"])  # other templates
    embed(fresh, LabelCache(file), ["label 0"], "a {}", model="other")
    assert fresh.seen == ["label 0", "a label 0"]


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    cache = LabelCache(tmp_path / "c", on_disk=10)
    for number in range(30):
        embed(Counting(), cache, [f"label {number}"])
    with sqlite3.connect(tmp_path / "c") as database:
        kept = [row[0] for row in database.execute("SELECT label FROM vectors ORDER BY id")]
    database.close()
    assert kept == [f"label {number}" for number in range(20, 30)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"not a database at all" * 100),
        lambda file: file.write_bytes(file.read_bytes()[:5000]),
        lambda file: file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 8192),
        lambda file: file.write_bytes(b""),
    ],
    ids=["foreign", "cut", "scribbled", "empty"],
)
def test_a_damaged_file_is_begun_again(tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "labels.sqlite3"
    labels = [f"label {number}" for number in range(200)]
    expected = embed(Counting(), LabelCache(file), labels)
    damage(file)
    text = Counting()
    assert torch.equal(embed(text, LabelCache(file), labels), expected)
    assert text.seen
    text = Counting()
    assert torch.equal(embed(text, LabelCache(file), labels), expected)
    assert text.seen == []  # and works again


def test_a_foreign_table_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "c"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE vectors (something TEXT)")
    database.close()
    embed(Counting(), LabelCache(file), ["cat"])
    text = Counting()
    embed(text, LabelCache(file), ["cat"])
    assert text.seen == []


@pytest.mark.parametrize("blob", [b"", b"\x00" * 4 * DIM, b"\xff" * 4 * DIM, "text", None])
def test_a_damaged_row_is_asked_for_again(tmp_path: Path, blob: object) -> None:
    file = tmp_path / "c"
    expected = embed(Counting(), LabelCache(file), ["cat", "dog"])
    with sqlite3.connect(file) as database:
        database.execute("UPDATE vectors SET vector = coalesce(?, 5) WHERE label = 'cat'", (blob,))
    database.close()
    text = Counting()
    assert torch.equal(embed(text, LabelCache(file), ["cat", "dog"]), expected)
    assert text.seen == ["cat"]


def test_no_place_for_the_file_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    for file in (tmp_path / "taken" / "labels", tmp_path):
        text, cache = Counting(), LabelCache(file)
        embed(text, cache, ["cat"])
        embed(text, cache, ["cat"])
        assert text.seen == ["cat"]
    assert (tmp_path / "taken").is_file()


def test_a_locked_file_is_done_without(tmp_path: Path) -> None:
    file = tmp_path / "c"
    embed(Counting(), LabelCache(file), ["cat"])
    holder = sqlite3.connect(file)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        text = Counting()
        got = embed(text, LabelCache(file), ["cat", "dog"])
    finally:
        holder.rollback()
        holder.close()
    assert (got - torch.stack([vector_of("cat"), vector_of("dog")])).abs().max() < 1e-6
    assert file.stat().st_size > 0  # not dropped: it was only busy
    embed(text := Counting(), LabelCache(file), ["cat"])
    assert text.seen == []


WRITER = """
import sys, torch
from pathlib import Path
from anytimecl.backbone.text import LabelCache
cache, me = LabelCache(Path(sys.argv[1])), sys.argv[2]
for number in range(60):
    vector = torch.zeros(6)
    vector[number % 6] = 1
    cache.put("shared", {f"label {number}": vector})
    cache.put(me, {f"label {number}": vector})
    got = LabelCache(Path(sys.argv[1])).get(me, [f"label {number}"], 6)
    assert got == {} or got[f"label {number}"][number % 6] == 1
"""


def test_two_processes_share_one_file(tmp_path: Path) -> None:
    file = tmp_path / "c"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), name], stderr=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.wait(60) == 0, writer.stderr and writer.stderr.read()
        assert writer.stderr is not None
        writer.stderr.close()
    labels = [f"label {number}" for number in range(60)]
    for space in ("one", "two", "shared"):
        got = LabelCache(file).get(space, labels, 6)
        assert len(got) >= 55  # a write may give way to another's, but is then only absent
        assert all(got[label][int(label.split()[1]) % 6] == 1 for label in got)


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    embed(Counting(), LabelCache.of_user(), ["cat"])
    assert [file.name for file in tmp_path.iterdir()] == ["labels.sqlite3"]
    monkeypatch.delenv("ANYTIMECL_CACHE")
    assert cache_folder().name == "anytimecl"


def test_a_backbone_embeds_with_its_own_templates(tmp_path: Path) -> None:
    text = Counting()
    half = (0.5, 0.5, 0.5)
    spec = Spec(
        name="fake", family="clip",
        preprocess=Preprocess(8, 8, "exact", (8, 8), "bicubic", half, half),
        tail=TailSpec(0, 1, 4, 1, "gelu", 1e-5),
        tokens=2, dim=DIM, logit_scale=100.0, logit_bias=0.0, weights="w",
    )  # fmt: skip
    backbone = Backbone(
        spec=spec,
        trunk=lambda pixels: pixels,
        tail={"any": torch.zeros(1)},
        text=text,
        templates=("a {}", "the {}"),
    )
    got = backbone.embed_labels(["cat"])
    assert (got[0] - slow("cat", ["a {}", "the {}"])).abs().max() < 1e-6
    assert (backbone.embed_labels(["cat"], ["{}"])[0] - vector_of("cat")).abs().max() < 1e-6
    assert text.seen == ["a cat", "the cat", "cat"]
