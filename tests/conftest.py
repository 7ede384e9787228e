"""What every test shares: the tiers, the embedded model and the folder of real images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

# A program, for an environment that has the libraries it asks: it holds no test.
collect_ignore = ["fixtures/make_foreign.py"]

# Set before any test imports the packages that read them.
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may depend on a hub
os.environ["MPLBACKEND"] = "Agg"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tests start processes; forked tokenizers warn

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone

# The same examples every time: a run that passed here passes there.
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.load_profile("steady")

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("unit", "real", "e2e", "slow")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses among the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put every test into a tier: `real` if it asks for the embedded model, else `unit`."""
    for item in items:
        if "embedded" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real)
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(pytest.mark.unit)


@pytest.fixture(scope="session")
def embedded() -> Backbone:
    """The embedded model. It is never skipped: `make setup` has fetched it."""
    from anytimecl import backbone

    return backbone.load("embedded")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of zipped real images: `ANYTIMECL_DATA`, or `shared/data` beside the checkout."""
    chosen = os.environ.get("ANYTIMECL_DATA")
    folder = Path(chosen).expanduser() if chosen else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        if chosen:
            pytest.fail(f"ANYTIMECL_DATA names {folder}, which is not a folder.")
        pytest.skip("NO REAL IMAGES: set ANYTIMECL_DATA to the folder that holds the data sets")
    return folder
