"""Label vectors from a file in place of the model's text side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.lab.conftest import TEST, TRAIN, write_recipe

from anytimecl.errors import ModelError
from anytimecl_lab.label_vectors import read_vectors
from anytimecl_lab.recipe import read_recipe
from anytimecl_lab.results import read_lines
from anytimecl_lab.run import main
from anytimecl_lab.studio import Studio

DIM = 24  # of the tiny model


def write(file: Path, names: list[str], dim: int = DIM, sources: list[str] | None = None) -> Path:
    vectors = np.random.default_rng(0).normal(size=(len(names), dim)).astype(np.float16)
    more = {} if sources is None else {"source": np.array(sources)}
    np.savez(file, names=np.array(names), vec=vectors, **more)
    return file


def test_names_are_found_however_they_are_written(tmp_path: Path) -> None:
    found = read_vectors(write(tmp_path / "v.npz", ["great_White shark", "cat"]), DIM)
    assert "Great White  Shark" in found
    assert "dog" not in found
    (vector,) = found.of(["great white shark"])
    assert float(vector.norm()) == pytest.approx(1)
    with pytest.raises(ModelError, match="no vectors for 1 labels: dog"):
        found.of(["cat", "dog"])


def test_the_best_source_of_a_name_is_taken(tmp_path: Path) -> None:
    file = write(tmp_path / "v.npz", ["cat", "cat", "dog"], sources=["a", "b", "a"])
    rows = torch.from_numpy(np.load(file)["vec"].astype(np.float32))
    plain, chosen = (read_vectors(file, DIM, order).of(["cat", "dog"]) for order in ((), ("b",)))
    unit = torch.nn.functional.normalize(rows, dim=-1)
    torch.testing.assert_close(plain, unit[[0, 2]])
    torch.testing.assert_close(chosen, unit[[1, 2]])
    with pytest.raises(ModelError, match="no source c"):
        read_vectors(file, DIM, ["c"])


def test_a_file_of_another_model_or_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="belong to another model"):
        read_vectors(write(tmp_path / "v.npz", ["cat"], dim=7), DIM)
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(ModelError, match="cannot be read"):
        read_vectors(tmp_path / "text.npz", DIM)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ModelError, match="no arrays `names` and `vec`"):
        read_vectors(tmp_path / "other.npz", DIM)


def test_labels_without_a_vector_are_left_out_of_their_tasks(
    data: Path, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "sets").symlink_to(data)
    names = ["cat", "dog", "tabby"]  # no shark
    write(data / "vectors.npz", names)
    file = write_recipe(
        tmp_path, model, "data-incremental", 'label_vectors = "vectors.npz"\nstages = [1.0]'
    )
    studio = Studio(read_recipe(file), data)
    assert studio.sets["pets"].names == ["cat", "dog"]
    assert len(studio.train["pets"].chosen) == 2 * TRAIN
    assert len(studio.test["pets"].chosen) == 2 * TEST
    assert len(studio.train["pets"].split) == 3 * TRAIN  # the cache keeps the split whole
    given = read_vectors(data / "vectors.npz", studio.backbone.spec.dim)
    torch.testing.assert_close(studio.vectors["cat"], given.of(["cat"])[0])
    out = tmp_path / "out.jsonl"
    assert main([str(file), "--data", str(data), "--out", str(out), "--seeds", "0"]) == 0
    lines = read_lines(out)
    assert {line["label_vectors"] for line in lines} == {f"vectors.npz {given.mark}"}
    assert all("error" not in line for line in lines)
