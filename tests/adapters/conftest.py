"""A tiny model for every estimator of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.backbone import tiny


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses among the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest of scikit-learn's checks comes three times; once is quick enough."""
    for item in items:
        if "check_classifiers_train(readonly_memmap" in item.name:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random CLIP."""
    return tiny.clip(tmp_path_factory.mktemp("model") / "clip")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Label vectors of tiny models stay out of the user's cache."""
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A tiny model's steps take longer to share out than to do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
