"""Label vectors in a file that only grows: written by one, read by many, cut short by a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anytimecl.errors import LabelError
from anytimecl.scale.told import LabelFile

CAT, DOG = torch.tensor([0.5, 1.0]), torch.tensor([0.25, -1.0])


def test_a_reader_sees_what_is_written_after_it_opened(tmp_path: Path) -> None:
    reader, writer = LabelFile(tmp_path), LabelFile(tmp_path)
    assert "cat" not in reader
    writer.put({"cat": CAT})
    assert torch.equal(reader.get("cat"), CAT)
    writer.put({"a\nnew line": DOG})
    assert torch.equal(reader.get("a\nnew line"), DOG)
    with pytest.raises(LabelError, match="has not told"):
        reader.get("dog")


def test_a_line_cut_short_loses_only_itself(tmp_path: Path) -> None:
    first = LabelFile(tmp_path)
    first.put({"cat": CAT})
    whole = first.path.stat().st_size
    first.put({"dog": DOG})
    written = first.path.read_bytes()
    for kept in range(whole, len(written)):  # wherever it was cut, the next one to write goes on
        first.path.write_bytes(written[:kept])
        reader, again = LabelFile(tmp_path), LabelFile(tmp_path)
        assert torch.equal(again.get("cat"), CAT)
        assert "dog" not in reader, kept
        again.put({"bird": CAT, "fish": DOG})
        for file in (again, reader, LabelFile(tmp_path)):
            assert torch.equal(file.get("bird"), CAT)
            assert torch.equal(file.get("fish"), DOG)
        again.put({"dog": DOG})
        assert torch.equal(reader.get("dog"), DOG)
