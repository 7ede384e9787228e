"""The router's actor: whom it lets wait for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import helpers

from anytimecl.scale import router

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError:
        pytest.skip("NO RAY: pip install -c constraints.txt -e '.[scale]'")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80_000_000,
        log_to_driver=False,
        namespace=router.NAMESPACE,
    )
    yield ray
    ray.shutdown()


def test_teachers_who_wait_hold_up_nobody_who_asks(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck:  # here, so that Ray sends the class itself and not its name
        """A tree whose leaf is busy for as long as the test wants."""

        def __init__(self, folder: str, *_: object) -> None:
            self._folder = Path(folder)

        def learn_record(self, _: bytes, label: str, **__: object) -> str:
            (self._folder / label).touch()
            while not (self._folder / "go on").exists():
                time.sleep(0.05)
            return label

        def predict(self, images: list[Any], *_: object, **__: object) -> list[str]:
            return ["a prediction"] * len(images)

        def health(self) -> list[str]:
            return ["fine"]

    monkeypatch.setattr(router, "RouterHost", Stuck)
    tree = router.up(tmp_path)
    said: list[Any] = []
    teachers = [
        threading.Thread(target=lambda n=n: said.append(tree.learn_record(b"", f"lesson {n}")))
        for n in range(24)
    ]
    for teacher in teachers:
        teacher.start()
    while len(list(tmp_path.glob("lesson *"))) < 8:
        time.sleep(0.05)

    def ask() -> None:
        said.append(tree.predict(helpers.picture(0), ["cat"]))
        said.append(tree.health())

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(30)
    try:
        assert said == ["a prediction", ["fine"]]  # and no lesson
    finally:
        (tmp_path / "go on").touch()
        for thread in (*teachers, asking):
            thread.join()
    assert sorted(said[2:]) == sorted(f"lesson {n}" for n in range(24))
