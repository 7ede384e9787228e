"""A packed task is the task, and two devices are compared seed by seed."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from tests.helpers import model, picture

from anytimecl.codec import make_codec
from benchmarks import agreement

NAMES = ("cat", "dog", "elk")


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(agreement, "load", lambda name: model())
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as archive:
        for number in range(18):
            file = io.BytesIO()
            picture(number).save(file, "PNG")
            split = "test" if number >= 12 else "train"
            archive.writestr(f"{split}/{NAMES[number % 3]}/{number}.png", file.getvalue())
    agreement.main(["pack", str(tmp_path), str(tmp_path / "packed"), "--task", "tiny"])
    return tmp_path / "packed"


def test_what_is_packed_can_be_learned_and_compared(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = agreement.unpack(packed, "cpu")
    assert {name: len(part.cls) for name, part in task.examples.items()} == {
        "train": 12, "test": 6,
    }  # fmt: skip
    codec = make_codec(agreement.CODEC, task.spec, task.tail)
    first = codec.decode([codec.encode(model().encode([picture(12)])[0])])
    found = task.examples["test"].cls[task.targets["test"].index(0)]
    torch.testing.assert_close(found, first.cls[0], atol=0.1, rtol=0.1)  # type: ignore[union-attr]

    out = tmp_path / "out.jsonl"
    agreement.main(["run", str(packed), str(out), "--seeds", "0,1"])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["seed"] for line in lines] == [0, 1]
    there = [line | {"device": "cuda", "tuned": line["tuned"] + 1} for line in lines]
    out.write_text("\n".join(map(json.dumps, lines + there)))
    agreement.main(["show", str(out)])
    said = capsys.readouterr().out
    assert "tuned: cuda, float32 against cpu, float32: +1.00, mean of 2 seeds" in said
