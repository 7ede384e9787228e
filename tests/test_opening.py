"""Files beside a memory that are damaged, or of another: named, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import lessons, measured, settings

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import ModelError, StoreError
from anytimecl.memory import open_memory
from anytimecl.opening import PRIOR, STORE


def opened(folder: Path) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, model=measured(), settings=settings())


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    """The folder of a memory."""
    with opened(tmp_path) as classifier:
        classifier.learn_many(lessons(4))
    return tmp_path


def test_a_memory_of_no_classifier_is_told(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={"codec": "none"}) as memory:
        memory.append("cat", b"a cat")
    with pytest.raises(StoreError, match="not made by a classifier"):
        opened(tmp_path)
    with open_memory(tmp_path) as memory:
        assert memory.labels() == {"cat": 1}


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", None])
def test_a_damaged_name_of_the_store_is_told(content: bytes | None, learned: Path) -> None:
    if content is None:
        (learned / STORE).mkdir()
    else:
        (learned / STORE).write_bytes(content)
    with pytest.raises(StoreError, match=rf"{STORE} is damaged"):
        opened(learned)
    with AnytimeClassifier.open(learned, model=measured(), store="sqlite") as classifier:
        assert len(classifier) == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda prior: {name: value[:1] for name, value in prior.items()}, "not a whole prior"),
        (lambda prior: {**prior, "near": torch.zeros(2)}, "not a whole prior"),
        (lambda prior: {**prior, "view": torch.full_like(prior["view"], torch.nan)}, "not finite"),
        (lambda prior: {**prior, "mean": prior["mean"][None]}, "not a whole prior"),
        (lambda prior: {**prior, "within": -prior["within"]}, "'within' is no .*positive definite"),
        (lambda prior: {**prior, "view.scale": torch.zeros(1)}, "'view' is no .*positive definite"),
    ],
)
def test_a_damaged_prior_is_told(
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], says: str, learned: Path
) -> None:
    save_file(change(load_file(learned / PRIOR)), learned / PRIOR)
    with pytest.raises(ModelError, match=says):
        opened(learned)


def test_the_prior_of_another_model_is_told(learned: Path) -> None:
    one = torch.eye(8).double()
    prior = type(measured().prior)
    prior(torch.zeros(8), one, one, one, torch.zeros(4)).save(learned / PRIOR)
    with pytest.raises(ModelError, match="of another model, of 8 dimensions instead of 24"):
        opened(learned)


def test_a_full_disk_for_the_prior_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("anytimecl.backbone.prior.save_file", full)
        with pytest.raises(StoreError, match="No space left on device"):
            opened(tmp_path)
    with opened(tmp_path) as classifier:
        assert (tmp_path / PRIOR).is_file()
        assert len(classifier) == 0
